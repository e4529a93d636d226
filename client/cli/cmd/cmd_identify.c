/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `gpunvme identify` prints Identify data of a controller and its namespaces.
 */
#include <inttypes.h>
#include <stdio.h>

#include "blockdev/nvme/nvme.h"
#include "blockdev/nvme/nvme_identify.h"
#include "client/cli/common/cli.h"
#include "client/cli/common/out.h"
#include "client/cli/common/pages.h"
#include "client/cli/ctrlr/cli_ctrlr.h"

/* Stores an Identify page. The alignment suits the structs in the page. */
struct page {
    uint8_t bytes[NVME_IDENTIFY_LEN] __attribute__((aligned(8)));
};

static int identify_complain(const char *object, const char *what, uint32_t nsid, int result)
{
    if (nsid)
        return cli_error(object, "%s %" PRIu32 ": %s", what, nsid, cli_identify_error(result));
    return cli_error(object, "%s: %s", what, cli_identify_error(result));
}

static int show_namespace(struct cli_out *o, struct cli_ctrlr *c, const char *object, uint32_t nsid)
{
    struct page page = {{0}};
    char title[32];
    int result = cli_identify_page(c, NVME_CNS_NS, nsid, page.bytes);

    if (result)
        return identify_complain(object, "namespace", nsid, result);
    snprintf(title, sizeof(title), "Namespace %" PRIu32, nsid);
    cli_out_open(o, NULL, title);
    const char *refused = cli_show_ns(o, page.bytes, nsid, cli_ctrlr_command_set(c, nsid));
    cli_out_close(o);
    if (refused)
        return cli_error(object, "namespace %" PRIu32 " cannot be used: %s; %s", nsid, refused,
                         "name another one, or format it where that changes it (nvme-format(1))");
    return 0;
}

/* The first page of the list has room for more than current drives have. */
static int show_all(struct cli_out *o, struct cli_ctrlr *c, const char *object, uint32_t nn)
{
    uint32_t ids[NVME_NS_LIST_IDS];
    int failed = 0;
    int n = cli_identify_list(c, 0, nn, ids);

    if (n < 0)
        return identify_complain(object, "list of namespaces", 0, n);
    for (int i = 0; i < n; i++)
        failed |= show_namespace(o, c, object, ids[i]);
    if (n == NVME_NS_LIST_IDS)
        return cli_error(object, "only the first %d namespaces are shown", n);
    return failed;
}

/* The kernel's driver does not report its workarounds. */
static void show_quirks(struct cli_out *o, const struct cli_ctrlr *c)
{
    char text[NVME_QUIRKS_TEXT];

    if (!c->driver)
        return;
    nvme_quirks_text(nvme_ctrlr_info(c->driver)->quirks, text, sizeof(text));
    cli_out_string(o, "quirks", "Workarounds:", text);
}

static int identify_show(const struct cli_options *options, const char *object, uint32_t nsid,
                         struct cli_ctrlr *c)
{
    struct page page = {{0}};
    struct cli_out out;
    uint32_t nn;
    int result = cli_identify_page(c, NVME_CNS_CTRL, 0, page.bytes);

    if (result)
        return identify_complain(object, "Identify", 0, result);
    cli_out_begin(&out, options->json, stdout);
    cli_out_string(&out, "device", "Device:", object);
    cli_out_string(&out, "through", "Through:", c->through);
    show_quirks(&out, c);
    cli_out_open(&out, "controller", "Controller");
    cli_show_ctrlr(&out, page.bytes, &nn);
    cli_out_close(&out);
    cli_out_list(&out, "namespaces");
    int failed = nsid ? show_namespace(&out, c, object, nsid) : show_all(&out, c, object, nn);
    cli_out_list_end(&out);
    cli_out_end(&out);
    return failed;
}

int cli_identify(const struct cli_options *options, char **operands, int n)
{
    const char *object = operands[0];
    struct reason why = {0};
    struct cli_target target;
    struct cli_ctrlr ctrlr;
    const struct bd_open_opts opts = cli_open_opts(options);

    (void)n;
    if (cli_target_find("", object, &target, &why) || cli_ctrlr_open(&target, &opts, &ctrlr, &why))
        return cli_error(object, "%s", why.text);
    int failed = identify_show(options, object, target.nsid, &ctrlr);
    cli_ctrlr_close(&ctrlr);
    return failed;
}
