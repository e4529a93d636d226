/* SPDX-License-Identifier: BSD-2-Clause */
/* Ranges of the NVTX domain "gpunvme". */
#include "client/lib/nvtx_range.h"

#ifdef GPUNVME_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

static nvtxDomainHandle_t domain;

/* Creates the domain. The first call of NVTX loads the tool, if the environment names one. */
static void make_domain(void)
{
    domain = nvtxDomainCreateA("gpunvme");
}

void nvtx_range_begin(const char *name, uint64_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    nvtxEventAttributes_t what = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
        .payload.ullValue = bytes,
        .messageType = NVTX_MESSAGE_TYPE_ASCII,
        .message.ascii = name,
    };

    pthread_once(&once, make_domain);
    nvtxDomainRangePushEx(domain, &what);
}

void nvtx_range_end(void)
{
    nvtxDomainRangePop(domain);
}
#endif
