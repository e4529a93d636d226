#include "mkfs/tool.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <uuid/uuid.h>

int tool_error(const char *object, const char *format, ...)
{
    va_list args;
    /* One line at a time, also when stderr is shared. */
    flockfile(stderr);
    fprintf(stderr, "%s: %s: ", program_invocation_short_name, object);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    funlockfile(stderr);
    return -1;
}

void tool_version(void)
{
    printf("%s (gpunvmefs) %s\n", program_invocation_short_name, GPUNVME_VERSION);
}

const char *tool_strerror(int err)
{
    switch (err) {
    case -EUCLEAN:
        return "its contents are damaged";
    case -EBUSY:
        return "in use (mounted, or held by another program), unmount it first";
    case -ENOTBLK:
        return "neither a regular file nor a block device";
    case -EIO:
        return "the device reports an error, see the kernel log";
    default:
        return strerror(-err);
    }
}

int tool_parse_number(const char *text, uint64_t *value)
{
    char *end;
    if (text[0] < '0' || text[0] > '9')
        return -EINVAL;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno || *end)
        return -EINVAL;
    *value = n;
    return 0;
}

int tool_parse_size(const char *text, uint64_t *bytes)
{
    static const char suffixes[] = "KMGT";
    char digits[24];
    size_t len = strlen(text);
    unsigned shift = 0;

    const char *suffix = len > 0 ? strchr(suffixes, text[len - 1]) : NULL;
    if (suffix) {
        shift = 10 * (unsigned)(suffix - suffixes + 1);
        len--;
    }
    if (len >= sizeof(digits))
        return -EINVAL;
    memcpy(digits, text, len);
    digits[len] = 0;
    uint64_t n;
    int err = tool_parse_number(digits, &n);
    if (err || n > UINT64_MAX >> shift)
        return -EINVAL;
    *bytes = n << shift;
    return 0;
}

int tool_open(const char *path, uint32_t flags, struct bd_dev **dev)
{
    int err = bd_file_open(path, flags, 0, dev);
    return err ? tool_error(path, "cannot open: %s", tool_strerror(err)) : 0;
}

void tool_print_uuid(FILE *out, const char *key, const uint8_t uuid[16])
{
    char text[UUID_STR_LEN];
    uuid_unparse_lower(uuid, text);
    fprintf(out, "%s: %s\n", key, text);
}
