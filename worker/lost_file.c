/* lost_file.c: see lost_file.h. */
#include "worker/lost_file.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include "engine/engine.h"

static const char *said_by;
static int said_exit;

static struct iovec piece(const char *text)
{
    return (struct iovec){.iov_base = (void *)text, .iov_len = strlen(text)};
}

/* Runs on any thread, in the middle of anything: only what is async-signal-safe. */
static void on_lost_page(int number, siginfo_t *info, void *context)
{
    (void)context;
    const char *path = engine_mapped_path(info->si_addr);
    if (path == NULL) {
        signal(number, SIG_DFL); /* not ours: the instruction runs again and ends the process with its signal */
        return;
    }
    struct iovec line[] = {piece(said_by), piece(": "), piece(path),
                           piece(": a mapped part of it is gone: the file was shortened, or its disk failed\n")};
    ssize_t written = writev(STDERR_FILENO, line, sizeof line / sizeof *line);
    (void)written; /* nobody is left to tell */
    _exit(said_exit);
}

void lost_file_catch(const char *program, int exit_code)
{
    said_by = program;
    said_exit = exit_code;
    struct sigaction action = {.sa_sigaction = on_lost_page, .sa_flags = SA_SIGINFO};
    sigfillset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}
