/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * gpunvme-sim serves a simulated NVMe controller to other processes over the
 * vfio-user protocol.
 */
#include <stdlib.h>

#include "sim/serve/serve_server.h"
#include "support/std_files.h"

#define EXIT_MISTAKES 3

int main(int argc, char **argv)
{
    struct serve_options o;

    if (std_files_fill() != 0)
        return EXIT_FAILURE;
    serve_options_parse(&o, argc, argv);
    int rc = serve_server_run(&o);
    if (rc < 0)
        return EXIT_FAILURE;
    return rc > 0 && o.strict ? EXIT_MISTAKES : EXIT_SUCCESS;
}
