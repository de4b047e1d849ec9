/* interrupt.h: Ctrl-C, SIGTERM and SIGHUP as a flag that long waits look at. */
#ifndef KVF_INTERRUPT_H
#define KVF_INTERRUPT_H

#include <signal.h>

extern volatile sig_atomic_t interrupt_seen; /* 0, or the signal that came */

/* From now on these signals set the flag instead of ending the process; a second one ends it. */
void interrupt_catch(void);

#endif
