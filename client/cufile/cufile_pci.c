/* SPDX-License-Identifier: BSD-2-Clause */
/* Lists the PCI devices of the machine from sysfs. */
#include <dirent.h>
#include <json-c/json.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cufile/cufile_driver.h"

#define DEVICES      "/sys/bus/pci/devices"
#define CLASS_NVME   0x0108u
#define BASE_DISPLAY 0x03u
#define VENDOR_GPU   0x10deu

/* Reads a number from a file of the device's folder, or returns 0. */
static unsigned long read_number(const char *device, const char *file)
{
    char name[PATH_MAX], text[32] = "";

    snprintf(name, sizeof(name), DEVICES "/%s/%s", device, file);
    FILE *f = fopen(name, "re");
    if (!f)
        return 0;
    if (!fgets(text, sizeof(text), f))
        text[0] = '\0';
    fclose(f);
    return strtoul(text, NULL, 16);
}

static bool is_gpu(const char *device)
{
    return read_number(device, "vendor") == VENDOR_GPU &&
           read_number(device, "class") >> 16 == BASE_DISPLAY;
}

static bool is_nvme(const char *device)
{
    return read_number(device, "class") >> 8 == CLASS_NVME;
}

static struct json_object *pci_describe(const char *device)
{
    char link[PATH_MAX], path[PATH_MAX];
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "address", json_object_new_string(device));
    snprintf(link, sizeof(link), DEVICES "/%s", device);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n > 0) {
        path[n] = '\0';
        const char *from = strstr(path, "/pci");
        json_object_object_add(o, "path", json_object_new_string(from ? from + 1 : path));
    }
    return o;
}

static struct json_object *describe_all(void)
{
    struct dirent **names = NULL;
    struct json_object *all = json_object_new_object();
    struct json_object *gpus = json_object_new_array(), *drives = json_object_new_array();
    int n = scandir(DEVICES, &names, NULL, alphasort);

    for (int i = 0; i < n; i++) {
        if (is_gpu(names[i]->d_name))
            json_object_array_add(gpus, pci_describe(names[i]->d_name));
        else if (is_nvme(names[i]->d_name))
            json_object_array_add(drives, pci_describe(names[i]->d_name));
        free(names[i]);
    }
    free(names);
    json_object_object_add(all, "gpus", gpus);
    json_object_object_add(all, "nvme", drives);
    return all;
}

CUfileError_t cuFileExportPCIeTopology(const char *filename)
{
    if (!filename)
        return cufile_status(CU_FILE_INVALID_VALUE);
    struct json_object *all = describe_all();
    int err = json_object_to_file_ext(filename, all, JSON_C_TO_STRING_PRETTY);
    json_object_put(all);
    return cufile_status(err ? CU_FILE_INVALID_VALUE : CU_FILE_SUCCESS);
}

/*
 * Returns the size of BAR 1, which maps the memory of a GPU. The second line of
 * the file has the form "first last flags".
 */
static size_t bar1_bytes(const char *device)
{
    char name[PATH_MAX];
    char line[128] = "", *rest;

    snprintf(name, sizeof(name), DEVICES "/%s/resource", device);
    FILE *f = fopen(name, "re");
    if (!f)
        return 0;
    for (int bar = 0; bar < 2; bar++) {
        if (!fgets(line, sizeof(line), f))
            line[0] = '\0';
    }
    fclose(f);
    unsigned long long start = strtoull(line, &rest, 16), end = strtoull(rest, NULL, 16);
    return end > start ? (size_t)(end - start + 1) : 0;
}

/* GPUs are numbered in the order of their PCI addresses. */
CUfileError_t cuFileGetBARSizeInKB(int gpu, size_t *kib)
{
    struct dirent **names = NULL;
    size_t bytes = 0;

    if (gpu < 0 || !kib)
        return cufile_status(CU_FILE_INVALID_VALUE);
    int n = scandir(DEVICES, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (is_gpu(names[i]->d_name) && gpu-- == 0)
            bytes = bar1_bytes(names[i]->d_name);
        free(names[i]);
    }
    free(names);
    *kib = bytes >> 10;
    return cufile_status(bytes ? CU_FILE_SUCCESS : CU_FILE_INVALID_VALUE);
}
