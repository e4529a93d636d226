/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme regs` prints the registers of a controller. */
#include <stdio.h>

#include "client/cli/common/cli.h"
#include "client/cli/common/out.h"
#include "client/cli/common/pages.h"
#include "client/cli/ctrlr/cli_ctrlr.h"

static int regs_show(const struct cli_options *options, const char *object,
                     const struct cli_bar *bar)
{
    uint64_t values[CLI_REGS];
    struct cli_out out;

    for (unsigned i = 0; i < CLI_REGS; i++)
        values[i] = cli_bar_read(bar, cli_reg_table[i].offset, cli_reg_table[i].bytes);
    cli_out_begin(&out, options->json, stdout);
    cli_out_string(&out, "device", "Device:", object);
    cli_out_string(&out, "through", "Through:", bar->through);
    cli_out_flag(&out, "reset", "Reset before reading:", bar->reset);
    cli_show_regs(&out, values);
    cli_out_end(&out);
    if (values[0] == UINT64_MAX)
        return cli_error(object, "all registers read as ones: the drive is gone, asleep, or does "
                                 "not decode its memory");
    return 0;
}

static int regs(const struct cli_options *options, const char *object)
{
    char why[512] = "";
    struct cli_target target;
    struct cli_bar bar;

    if (cli_target_find("", object, &target, why, sizeof(why)) ||
        cli_bar_open("", &target, options->noiommu, &bar, why, sizeof(why)))
        return cli_error(object, "%s", why);
    int failed = regs_show(options, object, &bar);
    cli_bar_close(&bar);
    return failed;
}

int cli_regs(int argc, char **argv)
{
    struct cli_options options;
    const char *device;
    int stop = cli_parse_one(argc, argv, "oN", &options, "one device", &device);

    return stop ? stop - 1 : regs(&options, device);
}
