/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * gpunvme-sim serves a simulated NVMe controller to other processes over the
 * vfio-user protocol.
 */
#include <argp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/nvme/nvme_spec.h"
#include "sim/serve/serve.h"
#include "support/number.h"
#include "support/option_words.h"
#include "support/std_files.h"

#define EXIT_USAGE    2
#define DEFAULT_BYTES (64u << 20)
#define SWAPS_LAST    511u /* pages N and N + 1 are in one list page */

/*
 * Describes an option and the field that it sets, unless set() does so. An option
 * without `arg` is a flag. Otherwise the value is a number up to `max`, or a size
 * if `max` is 0. Options of a namespace set the first one; the others become
 * equal to it.
 */
struct serve_option {
    const char *name, *arg, *doc;
    char letter; /* or 0 */
    int group;   /* of --help */
    void (*set)(struct serve_options *o, struct argp_state *state, const char *arg);
    size_t offset, len; /* bytes in struct serve_options */
    uint64_t max;
};

static uint64_t serve_options_number(struct argp_state *state, const char *name, const char *text,
                                     uint64_t max)
{
    uint64_t v = 0;

    if (!number_parse(text, 0, max, &v))
        argp_error(state, "--%s: '%s' is not a number up to %llu", name, text,
                   (unsigned long long)max);
    return v;
}

static uint64_t serve_options_size(struct argp_state *state, const char *name, const char *text)
{
    uint64_t v = 0;

    if (!number_parse_size(text, INT64_MAX, &v))
        argp_error(state, "--%s: '%s' is not a size, give digits and K, M, G or T", name, text);
    return v;
}

static void add_image(struct serve_options *o, struct argp_state *state, const char *path)
{
    unsigned n = 0;

    while (n < SIM_MAX_NAMESPACES && o->cfg.ns[n].path)
        n++;
    if (n == SIM_MAX_NAMESPACES) {
        argp_error(state, "--image: at most %d namespaces", SIM_MAX_NAMESPACES);
        return;
    }
    o->cfg.ns[n].path = path;
    if (o->cfg.namespaces <= n)
        o->cfg.namespaces = n + 1;
}

static void add_fault(struct serve_options *o, struct argp_state *state, const char *spec)
{
    struct reason why = {"out of memory"};

    if (o->n_faults == OPTIONS_MAX_FAULTS)
        argp_error(state, "--fault: at most %d", OPTIONS_MAX_FAULTS);
    else if (serve_fault_parse(spec, &o->faults[o->n_faults], &why) != 0)
        argp_error(state, "--fault: %s", why.text);
    else
        o->n_faults++;
}

static void set_pci_id(struct serve_options *o, struct argp_state *state, const char *arg)
{
    const size_t digits = strspn(arg, "0123456789abcdefABCDEF");
    const char *device = arg + digits + 1;

    if (digits != 4 || arg[digits] != ':' || strspn(device, "0123456789abcdefABCDEF") != 4 ||
        device[4] != '\0') {
        argp_error(state, "--pci-id: '%s' is not VENDOR:DEVICE, such as 1b36:0010", arg);
        return;
    }
    o->cfg.pci_vendor = (uint16_t)strtoul(arg, NULL, 16);
    o->pci_device = (uint16_t)strtoul(device, NULL, 16);
}

/* Parses N, or N and the commands in question. */
static void set_swaps(struct serve_options *o, struct argp_state *state, const char *arg)
{
    char digits[8] = "1";
    const char *of = arg ? strchr(arg, ',') : NULL;

    if (arg)
        snprintf(digits, sizeof(digits), "%.*s", (int)(of ? of - arg : (long)strlen(arg)), arg);
    o->cfg.swaps_prp = (unsigned)serve_options_number(state, "swaps-prps", digits, SWAPS_LAST);
    if (of && strcmp(of, ",read") == 0)
        o->cfg.swaps_opcode = NVME_IO_READ;
    else if (of && strcmp(of, ",write") == 0)
        o->cfg.swaps_opcode = NVME_IO_WRITE;
    else if (of || o->cfg.swaps_prp == 0)
        argp_error(state, "--swaps-prps: '%s' is not a page from 1, and read or write", arg);
}

static void set_second(struct serve_options *o, struct argp_state *state, const char *arg)
{
    o->wait_second = strcmp(arg, "wait") == 0;
    if (!o->wait_second && strcmp(arg, "refuse") != 0)
        argp_error(state, "--second-client: '%s' is neither refuse nor wait", arg);
}

static void set_latency(struct serve_options *o, struct argp_state *state, const char *arg)
{
    o->cfg.latency_ns = serve_options_number(state, "latency-us", arg, 60000000) * 1000;
}

static void set_reservations(struct serve_options *o, struct argp_state *state, const char *arg)
{
    (void)state;
    o->cfg.reservations = arg;
}

#define FIELD(f) NULL, offsetof(struct serve_options, f), sizeof(((struct serve_options *)0)->f)

static const struct serve_option options[] = {
    {"image", "FILE", "Image file of a namespace; once for each (default: memory)", 'i', 0,
     add_image, 0, 0, 0},
    {"size", "SIZE", "Bytes of each namespace in memory, with K, M, G or T (64M)", 's', 0,
     FIELD(cfg.ns[0].bytes), 0},
    {"namespaces", "N", "Number of namespaces, 1 to 8", 'n', 0, FIELD(cfg.namespaces),
     SIM_MAX_NAMESPACES},
    {"lba", "512|4096", "Size of an LBA (4096)", 0, 0, FIELD(cfg.ns[0].lba_size), 4096},
    {"read-only", NULL, "All namespaces are write protected", 'r', 0, FIELD(cfg.ns[0].read_only),
     1},
    {"shared", NULL, "Other servers with this option serve the images too", 0, 0,
     FIELD(cfg.ns[0].shared), 1},
    {"reservations", "FILE",
     "Offer reservations, kept in FILE together with the other servers that name it", 0, 0,
     set_reservations, 0, 0, 0},
    {"metadata", "N", "Say that an LBA has N bytes of metadata (0)", 0, 0,
     FIELD(cfg.ns[0].metadata), 4096},
    {"zoned", NULL, "Say that all namespaces are zoned", 0, 0, FIELD(cfg.ns[0].zoned), 1},
    {"mdts", "SIZE", "Largest transfer (128K)", 0, 1, FIELD(cfg.mdts), 0},
    {"threads", "N", "Threads of the controller (1)", 0, 1, FIELD(cfg.threads), 64},
    {"io-queues", "N", "Pairs of I/O queues offered (112)", 0, 1, FIELD(cfg.io_queues), 4095},
    {"max-depth", "N", "Entries of a queue at most (256)", 0, 1, FIELD(cfg.max_depth), 65536},
    {"doorbell-stride", "N", "CAP.DSTRD (0)", 0, 1, FIELD(cfg.doorbell_stride), 8},
    {"ready-ms", "N", "Time from CC.EN to CSTS.RDY (0)", 0, 1, FIELD(cfg.ready_ms), 120000},
    {"latency-us", "N", "Time each command takes (0)", 0, 1, set_latency, 0, 0, 0},
    {"reorder", NULL, "Complete commands out of order", 0, 1, FIELD(cfg.reorder), 1},
    {"seed", "N", "Of everything that is drawn", 0, 1, FIELD(cfg.seed), UINT64_MAX},
    {"no-sgl", NULL, "Offer no SGLs", 0, 1, FIELD(cfg.no_sgl), 1},
    {"no-volatile-cache", NULL, "Say that there is no volatile write cache", 0, 1,
     FIELD(cfg.no_volatile_cache), 1},
    {"fault", "SPEC", "Inject a fault: KIND[,KEY[=VALUE]]..., see gpunvme-sim(1)", 'f', 2,
     add_fault, 0, 0, 0},
    {"no-abort", NULL, "Abort ends nothing", 0, 2, FIELD(cfg.no_abort), 1},
    {"no-reset", NULL, "Offer no DEVICE_RESET", 0, 2, FIELD(cfg.no_reset), 1},
    {"no-mmap", NULL, "Offer no doorbells that can be mapped", 0, 2, FIELD(no_mmap), 1},
    {"dma-maps", "N", "Keep N regions of memory, and do not say so", 0, 2, FIELD(dma_maps),
     DMA_MAX_MAPS},
    {"no-prp-chains", NULL, "Take each entry of a PRP list for a data page", 0, 2,
     FIELD(cfg.no_prp_chains), 1},
    {"swaps-prps", "N[,read|,write]", "Swap pages N and N + 1 of a PRP list (1, of all commands)",
     0, 2, set_swaps, 0, 0, 0},
    {"wraps-short", NULL, "Keep data of less than a page in the page of PRP1", 0, 2,
     FIELD(cfg.wraps_short), 1},
    {"no-mdts", NULL, "Refuse transfers above --mdts, and do not say so", 0, 2, FIELD(cfg.no_mdts),
     1},
    {"keeps-queues", NULL, "CC.EN = 0 deletes no I/O queues", 0, 2, FIELD(cfg.keeps_queues), 1},
    {"stuck", NULL, "CSTS.RDY does not follow CC.EN before DEVICE_RESET", 0, 2, FIELD(stuck), 1},
    {"second-client", "refuse|wait", "What a second client gets (refuse)", 0, 2, set_second, 0, 0,
     0},
    {"pci-id", "VENDOR:DEVICE", "PCI ids, in hexadecimal (1b36:0010)", 0, 1, set_pci_id, 0, 0, 0},
    {"strict", NULL, "Exit with status 3 when a driver made mistakes", 0, 2, FIELD(strict), 1},
};

#define OPTIONS    (sizeof(options) / sizeof(options[0]))
#define FIRST_LONG 256 /* key of the first option; those with a letter have it as their key */

static int key_of(size_t i)
{
    return options[i].letter ? options[i].letter : FIRST_LONG + (int)i;
}

static void set_field(struct serve_options *o, struct argp_state *state,
                      const struct serve_option *option, const char *arg)
{
    uint64_t v = 1;

    if (arg)
        v = option->max ? serve_options_number(state, option->name, arg, option->max)
                        : serve_options_size(state, option->name, arg);
    memcpy((char *)o + option->offset, &v, option->len); /* little-endian */
}

/* Checks what the simulator would refuse without a reason. */
static void options_check(const struct serve_options *o, struct argp_state *state)
{
    const struct sim_config *c = &o->cfg;

    if (c->ns[0].lba_size != 512 && c->ns[0].lba_size != 4096)
        argp_error(state, "--lba: 512 and 4096 are possible");
    if (c->mdts < 8192 || c->mdts > 8u << 20 || (c->mdts & (c->mdts - 1)))
        argp_error(state, "--mdts: a power of two from 8K to 8M is possible");
    if (c->max_depth < 2)
        argp_error(state, "--max-depth: at least 2");
    if (!c->ns[0].path && (!c->ns[0].bytes || c->ns[0].bytes % c->ns[0].lba_size))
        argp_error(state, "--size: a multiple of the LBA size is needed");
}

static error_t options_set_option(int key, char *arg, struct argp_state *state)
{
    struct serve_options *o = state->input;

    for (size_t i = 0; i < OPTIONS; i++) {
        if (key_of(i) != key)
            continue;
        if (options[i].set)
            options[i].set(o, state, arg);
        else
            set_field(o, state, &options[i], arg);
        return 0;
    }
    switch (key) {
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            o->socket = arg;
        return state->arg_num == 0 ? 0 : ARGP_ERR_UNKNOWN;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "SOCKET: where to listen is missing");
        return 0;
    case ARGP_KEY_END:
        options_check(o, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Prints completions for a shell, which completes SOCKET itself, like a file. */
static void serve_options_complete(int n, char **words)
{
    struct option_words known[OPTIONS];

    for (size_t i = 0; i < OPTIONS; i++) {
        const struct serve_option *o = &options[i];
        /* "refuse|wait" lists the possible words, "VENDOR:DEVICE" lists none. */
        bool names_words = o->arg && strchr(o->arg, '|') && !strchr(o->arg, ',');

        known[i] = (struct option_words){.name = o->name,
                                         .letter = o->letter,
                                         .has_value = o->arg != NULL,
                                         .values = names_words ? o->arg : NULL,
                                         .help = o->doc};
    }
    option_words_print(known, OPTIONS, n > 1 ? words[n - 2] : "", n > 0 ? words[n - 1] : "");
}

/* Parses the command line. Exits with a message if it is invalid. */
static void serve_options_parse(struct serve_options *o, int argc, char **argv)
{
    struct argp_option argp_options[OPTIONS + 1] = {0};
    const struct argp argp = {
        .options = argp_options,
        .parser = options_set_option,
        .args_doc = "SOCKET",
        .doc = "Serves a simulated NVMe controller over the vfio-user protocol on a UNIX socket.",
    };

    argp_program_version = "gpunvme-sim (gpunvmefs) " GPUNVME_VERSION;
    argp_err_exit_status = EXIT_USAGE;
    *o = (struct serve_options){.cfg = {.namespaces = 1,
                                        .mdts = 128u << 10,
                                        .max_depth = 256,
                                        .ns = {{.bytes = DEFAULT_BYTES, .lba_size = 4096}}}};
    for (size_t i = 0; i < OPTIONS; i++)
        argp_options[i] =
            (struct argp_option){.name = options[i].name,
                                 .key = key_of(i),
                                 .arg = options[i].arg,
                                 .flags = options[i].set == set_swaps ? OPTION_ARG_OPTIONAL : 0,
                                 .doc = options[i].doc,
                                 .group = options[i].group};
    argp_parse(&argp, argc, argv, 0, NULL, o);
    /* A vector for each CQ, as Linux's driver wants it for a processor each. */
    o->cfg.vectors = 1 + (o->cfg.io_queues ? o->cfg.io_queues : SIM_IO_QUEUES);
    if (o->cfg.vectors > SIM_MAX_VECTORS)
        o->cfg.vectors = SIM_MAX_VECTORS;
    for (unsigned i = SIM_MAX_NAMESPACES; i-- > 0;) {
        const char *path = o->cfg.ns[i].path;
        o->cfg.ns[i] = o->cfg.ns[0];
        o->cfg.ns[i].path = path;
        if (path)
            o->cfg.ns[i].bytes = 0; /* images have the size of their files */
    }
}

#define EXIT_MISTAKES 3

int main(int argc, char **argv)
{
    struct serve_options o;

    if (std_files_fill() != 0)
        return EXIT_FAILURE;
    if (option_words_requested(argc, argv)) {
        serve_options_complete(argc - 2, argv + 2);
        return EXIT_SUCCESS;
    }
    serve_options_parse(&o, argc, argv);
    int rc = serve_server_run(&o);
    if (rc < 0)
        return EXIT_FAILURE;
    return rc > 0 && o.strict ? EXIT_MISTAKES : EXIT_SUCCESS;
}
