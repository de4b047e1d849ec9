#include "coordinator/client/interrupt.h"

#include <string.h>

volatile sig_atomic_t interrupt_seen;

static void interrupt_note(int signal_number)
{
    interrupt_seen = signal_number;
}

void interrupt_catch(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_handler = interrupt_note;
    action.sa_flags = (int)SA_RESETHAND; /* no SA_RESTART: a wait ends; RESETHAND: the second signal acts as usual */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}
