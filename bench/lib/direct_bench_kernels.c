/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens and closes the direct path of a benchmark, and launches its kernels. */
#include "bench/lib/direct_bench_kernels.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static int direct_kernels_fail(void)
{
    return bench_fail("direct path", gpunvme_error());
}

int bench_direct_open(struct bench_direct *p, const struct bench_mount *m, int fd,
                      const struct direct_options *options)
{
    int err = bench_stream_open(&p->stream, m->memory.on_gpu, sizeof(int64_t));

    if (err)
        return err;
    err = direct_open(m->g, options, &p->d);
    if (err) {
        p->d = NULL;
        return direct_kernels_fail();
    }
    err = leased_file_open(p->d, fd, true, &p->file);
    return err ? direct_kernels_fail() : 0;
}

void bench_direct_close(struct bench_direct *p)
{
    if (p->d)
        direct_close(p->d);
    if (p->stream.buffer)
        bench_stream_close(&p->stream);
    *p = (struct bench_direct){.d = NULL};
}

int bench_direct_read(struct bench_direct *p, void *to, uint64_t n, uint64_t offset)
{
    int64_t *bytes = p->stream.buffer;
    char what[128];
    int err;

    *bytes = 0;
    err = direct_read_async(p->file, to, n, offset, p->stream.cuda, bytes);
    if (err)
        return direct_kernels_fail();
    err = bench_stream_wait(&p->stream);
    if (!err && *bytes == (int64_t)n)
        return 0;
    snprintf(what, sizeof(what), "read of %" PRIu64 " bytes at %" PRIu64 " ended with %" PRId64, n,
             offset, *bytes);
    return bench_fail("direct path", what);
}
