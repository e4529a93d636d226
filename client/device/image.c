#include "client/device/image.h"

#include <stddef.h>

#ifdef DIRECT_FATBIN

/* The assembler puts the file here as it is; the driver finds its size in it. */
extern const char direct_fatbin[] __attribute__((visibility("hidden")));
__asm__(".pushsection .rodata\n"
        ".balign 16\n"
        ".global direct_fatbin\n"
        ".hidden direct_fatbin\n"
        "direct_fatbin:\n"
        ".incbin \"" DIRECT_FATBIN "\"\n"
        ".popsection\n");

const void *direct_image(void)
{
    return direct_fatbin;
}

#else

const void *direct_image(void)
{
    return NULL;
}

#endif
