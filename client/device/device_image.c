/* SPDX-License-Identifier: BSD-2-Clause */
/* The images of the library's kernels, loaded at their first use. */
#include "client/device/device_image.h"

#include <stddef.h>

/* The assembler puts the file here as it is; the driver finds its size in it. */
#define EMBED(name, file)                                           \
    extern const char name[] __attribute__((visibility("hidden"))); \
    __asm__(".pushsection .rodata\n"                                \
            ".balign 16\n"                                          \
            ".global " #name "\n"                                   \
            ".hidden " #name "\n" #name ":\n"                       \
            ".incbin \"" file "\"\n"                                \
            ".popsection\n")

#ifdef DIRECT_FATBIN
EMBED(direct_fatbin, DIRECT_FATBIN);
#define DIRECT_IMAGE direct_fatbin
#else
#define DIRECT_IMAGE NULL
#endif

#ifdef LIST_FATBIN
EMBED(list_fatbin, LIST_FATBIN);
#define LIST_IMAGE list_fatbin
#else
#define LIST_IMAGE NULL
#endif

#ifdef COMPARE_FATBIN
EMBED(compare_fatbin, COMPARE_FATBIN);
#define COMPARE_IMAGE compare_fatbin
#else
#define COMPARE_IMAGE NULL
#endif

#ifdef SERVICE_FATBIN
EMBED(service_fatbin, SERVICE_FATBIN);
#define SERVICE_IMAGE service_fatbin
#else
#define SERVICE_IMAGE NULL
#endif

#ifdef TABLE_FATBIN
EMBED(table_fatbin, TABLE_FATBIN);
#define TABLE_IMAGE table_fatbin
#else
#define TABLE_IMAGE NULL
#endif

const void *direct_image(void)
{
    return DIRECT_IMAGE;
}

const void *list_image(void)
{
    return LIST_IMAGE;
}

const void *compare_image(void)
{
    return COMPARE_IMAGE;
}

const void *service_image(void)
{
    return SERVICE_IMAGE;
}

const void *table_image(void)
{
    return TABLE_IMAGE;
}
