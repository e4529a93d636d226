/* SPDX-License-Identifier: BSD-2-Clause */
/* Handles the first message, which negotiates version and capabilities. */
#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

#include "sim/serve/serve_dma.h"
#include "sim/serve/serve_session.h"

static int parse_fds(struct serve_session *s, struct json_object *caps)
{
    struct json_object *fds;

    if (!json_object_object_get_ex(caps, VFIO_USER_CAP_MAX_MSG_FDS, &fds))
        return 0;
    if (!json_object_is_type(fds, json_type_int) || json_object_get_int64(fds) < 0)
        return EINVAL;
    s->peer_fds = json_object_get_int64(fds) > MESSAGE_MAX_FDS
                      ? MESSAGE_MAX_FDS
                      : (unsigned)json_object_get_int64(fds);
    return 0;
}

/*
 * The maximum number of descriptors is the only capability of a client that is
 * used.
 */
static int parse_capabilities(struct serve_session *s, const char *text, size_t len)
{
    struct json_object *top, *caps;
    int rc = 0;

    if (!len)
        return 0;
    if (text[len - 1] != '\0')
        return EINVAL;
    top = json_tokener_parse(text);
    if (!json_object_is_type(top, json_type_object))
        rc = EINVAL;
    else if (json_object_object_get_ex(top, "capabilities", &caps))
        rc = json_object_is_type(caps, json_type_object) ? parse_fds(s, caps) : EINVAL;
    json_object_put(top);
    return rc;
}

/* Returns the bytes written, including the terminating zero. */
static size_t write_capabilities(const struct serve_session *s, char *out, size_t len)
{
    char maps[64] = "";

    if (!s->dma_maps)
        snprintf(maps, sizeof(maps), "\"%s\":%d,", VFIO_USER_CAP_MAX_DMA_MAPS, DMA_MAX_MAPS);
    return (size_t)snprintf(out, len, "{\"capabilities\":{\"%s\":%d,\"%s\":%d,%s\"%s\":%d}}",
                            VFIO_USER_CAP_MAX_MSG_FDS, MESSAGE_MAX_FDS,
                            VFIO_USER_CAP_MAX_DATA_XFER_SIZE, MESSAGE_MAX_XFER, maps,
                            VFIO_USER_CAP_PGSIZES, VFIO_USER_DEFAULT_PGSIZES) +
           1;
}

int serve_version_agree(struct serve_session *s, const struct serve_message *m,
                        struct serve_reply *r)
{
    struct vfio_user_version v;
    size_t len = serve_message_len(m);

    if (s->greeted || len < sizeof(v))
        return EINVAL;
    memcpy(&v, m->payload, sizeof(v));
    if (v.major != VFIO_USER_MAJOR)
        return EINVAL;
    s->peer_fds = VFIO_USER_DEFAULT_MSG_FDS;
    int rc = parse_capabilities(s, (const char *)m->payload + sizeof(v), len - sizeof(v));
    if (rc)
        return rc;
    if (v.minor > VFIO_USER_MINOR)
        v.minor = VFIO_USER_MINOR;
    memcpy(r->payload, &v, sizeof(v));
    r->len = sizeof(v) +
             write_capabilities(s, (char *)r->payload + sizeof(v), sizeof(r->payload) - sizeof(v));
    s->greeted = true;
    return 0;
}
