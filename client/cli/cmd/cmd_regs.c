/* SPDX-License-Identifier: BSD-2-Clause */
/* `gpunvme regs` prints the registers of a controller. */
#include <stddef.h>
#include <stdio.h>

#include "client/cli/common/cli.h"
#include "client/cli/common/out.h"
#include "client/cli/common/pages.h"
#include "client/cli/ctrlr/cli_ctrlr.h"

enum {
    CAP,
    VS,
    INTMS,
    CC,
    CSTS,
    NSSR,
    AQA,
    ASQ,
    ACQ,
    CMBLOC,
    CMBSZ,
    BPINFO,
    CMBMSC,
    CMBSTS,
    CRTO,
    PMRCAP
};

const struct cli_reg cli_reg_table[CLI_REGS] = {
    [CAP] = {"cap", "CAP: capabilities", 0x00, 8},
    [VS] = {"vs", "VS: version", 0x08, 4},
    [INTMS] = {"intms", "INTMS: interrupt mask", 0x0c, 4},
    [CC] = {"cc", "CC: configuration", 0x14, 4},
    [CSTS] = {"csts", "CSTS: status", 0x1c, 4},
    [NSSR] = {"nssr", "NSSR: subsystem reset", 0x20, 4},
    [AQA] = {"aqa", "AQA: admin queue sizes", 0x24, 4},
    [ASQ] = {"asq", "ASQ: admin SQ address", 0x28, 8},
    [ACQ] = {"acq", "ACQ: admin CQ address", 0x30, 8},
    [CMBLOC] = {"cmbloc", "CMBLOC: memory buffer location", 0x38, 4},
    [CMBSZ] = {"cmbsz", "CMBSZ: memory buffer size", 0x3c, 4},
    [BPINFO] = {"bpinfo", "BPINFO: boot partitions", 0x40, 4},
    [CMBMSC] = {"cmbmsc", "CMBMSC: memory buffer control", 0x50, 8},
    [CMBSTS] = {"cmbsts", "CMBSTS: memory buffer status", 0x58, 4},
    [CRTO] = {"crto", "CRTO: ready timeouts", 0x68, 4},
    [PMRCAP] = {"pmrcap", "PMRCAP: persistent memory region", 0xe00, 4},
};

/* Describes a register field of `width` bits that begins at bit `shift`. */
struct bits {
    uint8_t reg, shift, width;
    const char *key, *label;
};

static const struct bits fields[] = {
    {CAP, 0, 16, "mqes", "Queue entries, less one:"},
    {CAP, 16, 1, "cqr", "Contiguous queues only:"},
    {CAP, 17, 2, "ams", "Arbitration:"},
    {CAP, 24, 8, "to", "Ready timeout, 500 ms:"},
    {CAP, 32, 4, "dstrd", "Doorbell stride, 4<<n:"},
    {CAP, 36, 1, "nssrs", "Subsystem reset:"},
    {CAP, 37, 8, "css", "Command sets:"},
    {CAP, 45, 1, "bps", "Boot partitions:"},
    {CAP, 48, 4, "mpsmin", "Smallest page, 4096<<n:"},
    {CAP, 52, 4, "mpsmax", "Largest page, 4096<<n:"},
    {CAP, 56, 1, "pmrs", "Persistent memory region:"},
    {CAP, 57, 1, "cmbs", "Memory buffer:"},
    {CAP, 59, 2, "crms", "Ready modes:"},
    {VS, 16, 16, "major", "Major:"},
    {VS, 8, 8, "minor", "Minor:"},
    {VS, 0, 8, "tertiary", "Tertiary:"},
    {CC, 0, 1, "en", "Enabled:"},
    {CC, 4, 3, "css", "Command set:"},
    {CC, 7, 4, "mps", "Page, 4096<<n:"},
    {CC, 11, 3, "ams", "Arbitration:"},
    {CC, 14, 2, "shn", "Shutdown:"},
    {CC, 16, 4, "iosqes", "SQ entry, 1<<n:"},
    {CC, 20, 4, "iocqes", "CQ entry, 1<<n:"},
    {CSTS, 0, 1, "rdy", "Ready:"},
    {CSTS, 1, 1, "cfs", "Fatal status:"},
    {CSTS, 2, 2, "shst", "Shutdown status:"},
    {CSTS, 4, 1, "nssro", "Subsystem was reset:"},
    {CSTS, 5, 1, "pp", "Processing paused:"},
    {AQA, 0, 12, "asqs", "SQ entries, less one:"},
    {AQA, 16, 12, "acqs", "CQ entries, less one:"},
    {CMBLOC, 0, 3, "bir", "BAR:"},
    {CMBLOC, 12, 20, "ofst", "Offset, in units:"},
    {CMBSZ, 0, 1, "sqs", "SQs in it:"},
    {CMBSZ, 1, 1, "cqs", "CQs in it:"},
    {CMBSZ, 2, 1, "lists", "PRP and SGL lists in it:"},
    {CMBSZ, 3, 1, "rds", "Read data in it:"},
    {CMBSZ, 4, 1, "wds", "Write data in it:"},
    {CMBSZ, 8, 4, "szu", "Unit, 4096<<4n:"},
    {CMBSZ, 12, 20, "sz", "Size, in units:"},
    {CRTO, 0, 16, "crwmt", "Ready with media, 500 ms:"},
    {CRTO, 16, 16, "crimt", "Ready without, 500 ms:"},
};

static void show_bits(struct cli_out *o, unsigned reg, uint64_t value)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        const struct bits *f = &fields[i];
        if (f->reg == reg)
            cli_out_number(o, f->key, f->label, value >> f->shift & ((1ull << f->width) - 1));
    }
}

void cli_show_regs(struct cli_out *o, const uint64_t *values)
{
    for (unsigned i = 0; i < CLI_REGS; i++) {
        cli_out_open(o, cli_reg_table[i].key, cli_reg_table[i].label);
        cli_out_hex(o, "value", "Value:", values[i], 2 * cli_reg_table[i].bytes);
        show_bits(o, i, values[i]);
        cli_out_close(o);
    }
}

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

int cli_regs(const struct cli_options *options, char **operands, int n)
{
    const char *object = operands[0];
    struct reason why = {0};
    struct cli_target target;
    struct cli_bar bar;
    const struct bd_open_opts opts = cli_open_opts(options);

    (void)n;
    if (cli_target_find("", object, &target, &why) || cli_bar_open("", &target, &opts, &bar, &why))
        return cli_error(object, "%s", why.text);
    int failed = regs_show(options, object, &bar);
    cli_bar_close(&bar);
    return failed;
}
