/*
 * Going into the background. The fork comes before the device and the GPU are opened: CUDA does
 * not survive it. The parent stays until the child is serving or has failed, and exits with the
 * status the child tells it.
 */
#ifndef FUSEFS_DAEMON_BACKGROUND_H
#define FUSEFS_DAEMON_BACKGROUND_H

/*
 * Returns in the child alone, with the descriptor the verdict goes to in *verdict; -errno when
 * there is no child.
 */
int background_start(int *verdict);
/* The mount is being served: lets the parent exit with 0, and goes on without a terminal. */
void background_ready(int verdict);
/* Lets the parent exit with status. */
void background_failed(int verdict, int status);

#endif
