// What the parts of `gpunvme` describe, caught as a JSON document and as text.
#ifndef TESTS_CLIENT_REPORT_H
#define TESTS_CLIENT_REPORT_H

#include <json-c/json.h>

#include <functional>
#include <memory>
#include <string>

#include "client/cli/out.h"

struct JsonFree {
    void operator()(struct json_object *o) const
    {
        json_object_put(o);
    }
};
using Json = std::unique_ptr<struct json_object, JsonFree>;

// Runs what describes something, and returns what was printed.
std::string printed(bool json, const std::function<void(struct cli_out *)> &describe);
// The document; null, with a failure, when it is none.
Json document(const std::function<void(struct cli_out *)> &describe);

// Members of a document; a failure and a null or an empty value when there is none.
struct json_object *member(struct json_object *o, const char *key);
std::string text(struct json_object *o, const char *key);
uint64_t number(struct json_object *o, const char *key);
bool flag(struct json_object *o, const char *key);

#endif
