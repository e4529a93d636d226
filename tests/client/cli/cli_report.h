/* SPDX-License-Identifier: BSD-2-Clause */
// What the parts of `gpunvme` describe, caught as a JSON document and as text.
#ifndef TESTS_CLIENT_CLI_CLI_REPORT_H
#define TESTS_CLIENT_CLI_CLI_REPORT_H

#include <gtest/gtest.h>
#include <json-c/json.h>

#include <functional>
#include <memory>
#include <string>

#include "client/cli/common/out.h"

struct JsonFree {
    void operator()(struct json_object *o) const { json_object_put(o); }
};
using Json = std::unique_ptr<struct json_object, JsonFree>;

// These return a member of a document. If it is missing, the test fails, and the value is null or
// empty.
inline struct json_object *member(struct json_object *o, const char *key)
{
    struct json_object *value = nullptr;

    EXPECT_TRUE(json_object_object_get_ex(o, key, &value)) << key;
    return value;
}

inline std::string text(struct json_object *o, const char *key)
{
    const char *value = json_object_get_string(member(o, key));

    return value ? value : "";
}

inline uint64_t number(struct json_object *o, const char *key)
{
    return json_object_get_uint64(member(o, key));
}

inline bool flag(struct json_object *o, const char *key)
{
    return json_object_get_boolean(member(o, key));
}

// Runs a function that describes an object, and returns the output.
std::string printed(bool json, const std::function<void(struct cli_out *)> &describe);
// The document; null, with a failure, when it is none.
Json document(const std::function<void(struct cli_out *)> &describe);

#endif
