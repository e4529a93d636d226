/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * gpunvme-sim serves a simulated NVMe controller to other processes over the
 * vfio-user protocol.
 */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/nvme/nvme_spec.h"
#include "sim/serve/serve_dma.h"
#include "sim/serve/serve_server.h"
#include "support/number.h"
#include "support/option_words.h"
#include "support/std_files.h"

#define EXIT_USAGE    2
#define DEFAULT_BYTES (64u << 20)
#define SWAPS_LAST    511u /* pages N and N + 1 are in one list page */

enum long_option {
    OPT_LBA = 256,
    OPT_MDTS,
    OPT_THREADS,
    OPT_IO_QUEUES,
    OPT_MAX_DEPTH,
    OPT_STRIDE,
    OPT_READY_MS,
    OPT_LATENCY_US,
    OPT_DMA_MAPS,
    OPT_SEED,
    OPT_REORDER,
    OPT_NO_SGL,
    OPT_NO_CACHE,
    OPT_NO_ABORT,
    OPT_NO_RESET,
    OPT_NO_MMAP,
    OPT_NO_CHAINS,
    OPT_SWAPS,
    OPT_WRAPS,
    OPT_SHARED,
    OPT_METADATA,
    OPT_ZONED,
    OPT_NO_MDTS,
    OPT_KEEPS_QUEUES,
    OPT_STUCK,
    OPT_SECOND,
    OPT_STRICT,
    OPT_PCI_ID,
    OPT_RESERVATIONS,
};

static const struct argp_option argp_options[] = {
    {"image", 'i', "FILE", 0, "Image file of a namespace; once for each (default: memory)", 0},
    {"size", 's', "SIZE", 0, "Bytes of each namespace in memory, with K, M, G or T (64M)", 0},
    {"namespaces", 'n', "N", 0, "Number of namespaces, 1 to 8", 0},
    {"lba", OPT_LBA, "512|4096", 0, "Size of an LBA (4096)", 0},
    {"read-only", 'r', NULL, 0, "All namespaces are write protected", 0},
    {"shared", OPT_SHARED, NULL, 0, "Other servers with this option serve the images too", 0},
    {"reservations", OPT_RESERVATIONS, "FILE", 0,
     "Offer reservations, kept in FILE together with the other servers that name it", 0},
    {"metadata", OPT_METADATA, "N", 0, "Say that an LBA has N bytes of metadata (0)", 0},
    {"zoned", OPT_ZONED, NULL, 0, "Say that all namespaces are zoned", 0},
    {"mdts", OPT_MDTS, "SIZE", 0, "Largest transfer (128K)", 1},
    {"threads", OPT_THREADS, "N", 0, "Threads of the controller (1)", 1},
    {"io-queues", OPT_IO_QUEUES, "N", 0, "Pairs of I/O queues offered (112)", 1},
    {"max-depth", OPT_MAX_DEPTH, "N", 0, "Entries of a queue at most (256)", 1},
    {"doorbell-stride", OPT_STRIDE, "N", 0, "CAP.DSTRD (0)", 1},
    {"ready-ms", OPT_READY_MS, "N", 0, "Time from CC.EN to CSTS.RDY (0)", 1},
    {"latency-us", OPT_LATENCY_US, "N", 0, "Time each command takes (0)", 1},
    {"reorder", OPT_REORDER, NULL, 0, "Complete commands out of order", 1},
    {"seed", OPT_SEED, "N", 0, "Of everything that is drawn", 1},
    {"no-sgl", OPT_NO_SGL, NULL, 0, "Offer no SGLs", 1},
    {"no-volatile-cache", OPT_NO_CACHE, NULL, 0, "Say that there is no volatile write cache", 1},
    {"fault", 'f', "SPEC", 0, "Inject a fault: KIND[,KEY[=VALUE]]..., see gpunvme-sim(1)", 2},
    {"no-abort", OPT_NO_ABORT, NULL, 0, "Abort ends nothing", 2},
    {"no-reset", OPT_NO_RESET, NULL, 0, "Offer no DEVICE_RESET", 2},
    {"no-mmap", OPT_NO_MMAP, NULL, 0, "Offer no doorbells that can be mapped", 2},
    {"dma-maps", OPT_DMA_MAPS, "N", 0, "Keep N regions of memory, and do not say so", 2},
    {"no-prp-chains", OPT_NO_CHAINS, NULL, 0, "Take each entry of a PRP list for a data page", 2},
    {"swaps-prps", OPT_SWAPS, "N[,read|,write]", OPTION_ARG_OPTIONAL,
     "Swap pages N and N + 1 of a PRP list (1, of all commands)", 2},
    {"wraps-short", OPT_WRAPS, NULL, 0, "Keep data of less than a page in the page of PRP1", 2},
    {"no-mdts", OPT_NO_MDTS, NULL, 0, "Refuse transfers above --mdts, and do not say so", 2},
    {"keeps-queues", OPT_KEEPS_QUEUES, NULL, 0, "CC.EN = 0 deletes no I/O queues", 2},
    {"stuck", OPT_STUCK, NULL, 0, "CSTS.RDY does not follow CC.EN before DEVICE_RESET", 2},
    {"second-client", OPT_SECOND, "refuse|wait", 0, "What a second client gets (refuse)", 2},
    {"pci-id", OPT_PCI_ID, "VENDOR:DEVICE", 0, "PCI ids, in hexadecimal (1b36:0010)", 1},
    {"strict", OPT_STRICT, NULL, 0, "Exit with status 3 when a driver made mistakes", 2},
    {0},
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

static uint64_t size(struct argp_state *state, const char *name, const char *text)
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
    char why[160] = "out of memory";

    if (o->n_faults == OPTIONS_MAX_FAULTS)
        argp_error(state, "--fault: at most %d", OPTIONS_MAX_FAULTS);
    else if (serve_fault_parse(spec, &o->faults[o->n_faults], why, sizeof(why)) != 0)
        argp_error(state, "--fault: %s", why);
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
    o->pci_vendor = o->cfg.pci_vendor = (uint16_t)strtoul(arg, NULL, 16);
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

/* Sets the options without a value. */
static bool options_set_flag(struct serve_options *o, int key)
{
    bool *const flags[] = {
        [OPT_REORDER - OPT_LBA] = &o->cfg.reorder,
        [OPT_NO_SGL - OPT_LBA] = &o->cfg.no_sgl,
        [OPT_NO_CACHE - OPT_LBA] = &o->cfg.no_volatile_cache,
        [OPT_NO_ABORT - OPT_LBA] = &o->cfg.no_abort,
        [OPT_NO_RESET - OPT_LBA] = &o->cfg.no_reset,
        [OPT_NO_MMAP - OPT_LBA] = &o->no_mmap,
        [OPT_NO_CHAINS - OPT_LBA] = &o->cfg.no_prp_chains,
        [OPT_WRAPS - OPT_LBA] = &o->cfg.wraps_short,
        [OPT_NO_MDTS - OPT_LBA] = &o->cfg.no_mdts,
        [OPT_KEEPS_QUEUES - OPT_LBA] = &o->cfg.keeps_queues,
        [OPT_STUCK - OPT_LBA] = &o->stuck,
        [OPT_SHARED - OPT_LBA] = &o->cfg.ns[0].shared,
        [OPT_ZONED - OPT_LBA] = &o->cfg.ns[0].zoned,
        [OPT_STRICT - OPT_LBA] = &o->strict,
    };

    if (key < OPT_LBA || key > OPT_STRICT || !flags[key - OPT_LBA])
        return false;
    *flags[key - OPT_LBA] = true;
    return true;
}

/* The options whose value is a plain number. */
static error_t options_set_number(struct serve_options *o, struct argp_state *state, int key,
                                  const char *arg)
{
    const struct {
        int key;
        const char *name;
        uint64_t max;
        unsigned *value;
    } numbers[] = {
        {OPT_THREADS, "threads", 64, &o->cfg.threads},
        {OPT_IO_QUEUES, "io-queues", 4095, &o->cfg.io_queues},
        {OPT_MAX_DEPTH, "max-depth", 65536, &o->cfg.max_depth},
        {OPT_STRIDE, "doorbell-stride", 8, &o->cfg.doorbell_stride},
        {OPT_READY_MS, "ready-ms", 120000, &o->cfg.ready_ms},
        {OPT_DMA_MAPS, "dma-maps", DMA_MAX_MAPS, &o->dma_maps},
        {'n', "namespaces", SIM_MAX_NAMESPACES, &o->cfg.namespaces},
    };

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (numbers[i].key != key)
            continue;
        *numbers[i].value =
            (unsigned)serve_options_number(state, numbers[i].name, arg, numbers[i].max);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
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
    struct sim_ns_config *ns = &o->cfg.ns[0]; /* the others become like it */

    if (options_set_flag(o, key))
        return 0;
    switch (key) {
    case 'i':
        add_image(o, state, arg);
        return 0;
    case 's':
        ns->bytes = size(state, "size", arg);
        return 0;
    case OPT_LATENCY_US:
        o->cfg.latency_ns = serve_options_number(state, "latency-us", arg, 60000000) * 1000;
        return 0;
    case OPT_SEED:
        o->cfg.seed = serve_options_number(state, "seed", arg, UINT64_MAX);
        return 0;
    case 'r':
        ns->read_only = true;
        return 0;
    case OPT_LBA:
        ns->lba_size = (uint32_t)serve_options_number(state, "lba", arg, 4096);
        return 0;
    case OPT_METADATA:
        ns->metadata = (uint16_t)serve_options_number(state, "metadata", arg, 4096);
        return 0;
    case OPT_MDTS:
        o->cfg.mdts = (unsigned)size(state, "mdts", arg);
        return 0;
    case OPT_PCI_ID:
        set_pci_id(o, state, arg);
        return 0;
    case OPT_RESERVATIONS:
        o->cfg.reservations = arg;
        return 0;
    case OPT_SWAPS:
        set_swaps(o, state, arg);
        return 0;
    case OPT_SECOND:
        set_second(o, state, arg);
        return 0;
    case 'f':
        add_fault(o, state, arg);
        return 0;
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
        return options_set_number(o, state, key, arg);
    }
}

/* Prints completions for a shell, which completes SOCKET itself, like a file. */
static void serve_options_complete(int n, char **words)
{
    struct option_words options[sizeof(argp_options) / sizeof(argp_options[0])];
    size_t n_options = 0;

    for (const struct argp_option *o = argp_options; o->name; o++) {
        /* "refuse|wait" lists the possible words, "VENDOR:DEVICE" lists none. */
        bool names_words = o->arg && strchr(o->arg, '|') && !strchr(o->arg, ',');
        options[n_options++] =
            (struct option_words){.name = o->name,
                                  .letter = o->key < OPT_LBA ? (char)o->key : '\0',
                                  .has_value = o->arg != NULL,
                                  .values = names_words ? o->arg : NULL,
                                  .help = o->doc};
    }
    option_words_print(options, n_options, n > 1 ? words[n - 2] : "", n > 0 ? words[n - 1] : "");
}

/* Parses the command line. Exits with a message if it is invalid. */
static void serve_options_parse(struct serve_options *o, int argc, char **argv)
{
    static const struct argp argp = {
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
