/* SPDX-License-Identifier: BSD-2-Clause */
// The client's side of the descriptor socket, with invalid messages as well.
#ifndef TESTS_DAEMON_TOKENS_H
#define TESTS_DAEMON_TOKENS_H

#include <cstdint>
#include <string>

// A connection to "@NAME", or -1; connect_to() has sent the cookie.
int connect_silently(const std::string &name);
int connect_to(const std::string &name, uint64_t cookie);
// One message: word with the descriptor (none when negative).
bool send_word(int s, int fd, uint64_t word);
// Sends word with the descriptor (none when negative). Returns the reply, 0
// without one.
uint64_t token_for(const std::string &name, uint64_t cookie, int fd, uint64_t word = 0);

#endif
