// The client's side of the daemon's socket, written out so that a test can say nonsense.
#ifndef TESTS_DAEMON_TOKENS_H
#define TESTS_DAEMON_TOKENS_H

#include <cstdint>
#include <string>

// A connection to "@NAME", or -1.
int connect_to(const std::string &name);
// One message: word with the descriptor (none when negative).
bool send_word(int s, int fd, uint64_t word);
// Sends word with the descriptor (none when negative); the answer, 0 when there is none.
uint64_t token_for(const std::string &name, int fd, uint64_t word = 0);

#endif
