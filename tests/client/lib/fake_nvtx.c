/* SPDX-License-Identifier: BSD-2-Clause */
/* A profiler of NVTX: keeps what ranges there were, one line each, and how deep they are now. */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <string.h>

/* For the test, by dlsym(3). Of one thread. */
char fake_nvtx_log[4096];
int fake_nvtx_depth;

static char domain_name[64];

static nvtxDomainHandle_t create(const char *name)
{
    snprintf(domain_name, sizeof(domain_name), "%s", name);
    return (nvtxDomainHandle_t)domain_name;
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *what)
{
    size_t used = strlen(fake_nvtx_log);

    snprintf(fake_nvtx_log + used, sizeof(fake_nvtx_log) - used, "%s: %s %llu\n",
             (const char *)domain, what->message.ascii, (unsigned long long)what->payload.ullValue);
    return fake_nvtx_depth++;
}

static int pop(nvtxDomainHandle_t domain)
{
    return domain == (nvtxDomainHandle_t)domain_name ? --fake_nvtx_depth : -1;
}

/* The name that NVTX looks for. 1: the tool takes part. */
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned n;

    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &n) ||
        n <= NVTX_CBID_CORE2_DomainCreateA)
        return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
