/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/client/cli/cli_report.h"

#include <cstdio>
#include <cstdlib>

std::string printed(bool json, const std::function<void(struct cli_out *)> &describe)
{
    char *buf = nullptr;
    size_t len = 0;
    FILE *to = open_memstream(&buf, &len);
    struct cli_out out;
    cli_out_begin(&out, json, to);
    describe(&out);
    cli_out_end(&out);
    fclose(to);
    std::string all(buf, len);
    free(buf);
    return all;
}

Json document(const std::function<void(struct cli_out *)> &describe)
{
    std::string all = printed(true, describe);
    Json root(json_tokener_parse(all.c_str()));
    EXPECT_TRUE(root) << all;
    return root;
}
