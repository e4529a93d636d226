/* SPDX-License-Identifier: BSD-2-Clause */
/* Loads each image of the library's kernels at its first use. */
#include "client/device/device_image.h"

#include <stddef.h>

#ifdef DIRECT_FATBIN
/*
 * Defines a function that returns an image. The assembler puts the file here as
 * it is; the driver finds its size in it.
 */
#define IMAGE(function, file)                                                    \
    extern const char function##_fatbin[] __attribute__((visibility("hidden"))); \
    __asm__(".pushsection .rodata\n"                                             \
            ".balign 16\n"                                                       \
            ".global " #function "_fatbin\n"                                     \
            ".hidden " #function "_fatbin\n" #function "_fatbin:\n"              \
            ".incbin \"" file "\"\n"                                             \
            ".popsection\n");                                                    \
    const void *function(void)                                                   \
    {                                                                            \
        return function##_fatbin;                                                \
    }
#else
#define IMAGE(function, file)  \
    const void *function(void) \
    {                          \
        return NULL;           \
    }
#endif

IMAGE(direct_image, DIRECT_FATBIN)
IMAGE(list_image, LIST_FATBIN)
IMAGE(compare_image, COMPARE_FATBIN)
IMAGE(service_image, SERVICE_FATBIN)
IMAGE(table_image, TABLE_FATBIN)
