/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory for tests: a host mapping, or the GPU's. */
#ifndef TESTS_CUDA_GQ_TEST_MEM_H
#define TESTS_CUDA_GQ_TEST_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "cuda/gq.h"

__BEGIN_DECLS

struct test_mem {
    bool is_cuda;
    void *addr; /* page-aligned */
    size_t len;
};

/* Returns false when there is none. */
bool test_mem_alloc(bool is_cuda, size_t len, struct test_mem *out);
void test_mem_free(struct test_mem *m);
void test_mem_write(const struct test_mem *m, size_t offset, const void *src, size_t len);
void test_mem_read(const struct test_mem *m, size_t offset, void *dst, size_t len);
/* The handle of the whole allocation, for another process; false where that is impossible. */
bool test_mem_export(const struct test_mem *m, unsigned char ipc[64]);

__END_DECLS

#endif
