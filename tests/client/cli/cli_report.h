/* SPDX-License-Identifier: BSD-2-Clause */
// What the parts of `gpunvme` describe, caught as a JSON document and as text.
#ifndef TESTS_CLIENT_CLI_CLI_REPORT_H
#define TESTS_CLIENT_CLI_CLI_REPORT_H

#include <functional>
#include <string>

#include "client/cli/common/out.h"
#include "tests/client/cli/json.h"

// Runs a function that describes an object, and returns the output.
std::string printed(bool json, const std::function<void(struct cli_out *)> &describe);
// The document; null, with a failure, when it is none.
Json document(const std::function<void(struct cli_out *)> &describe);

#endif
