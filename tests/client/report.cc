#include "tests/client/report.h"

#include <gtest/gtest.h>

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

struct json_object *member(struct json_object *o, const char *key)
{
    struct json_object *value = nullptr;
    EXPECT_TRUE(json_object_object_get_ex(o, key, &value)) << key;
    return value;
}

std::string text(struct json_object *o, const char *key)
{
    const char *value = json_object_get_string(member(o, key));
    return value ? value : "";
}

uint64_t number(struct json_object *o, const char *key)
{
    return json_object_get_uint64(member(o, key));
}

bool flag(struct json_object *o, const char *key)
{
    return json_object_get_boolean(member(o, key));
}
