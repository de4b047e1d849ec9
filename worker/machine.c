/* machine.c: see machine.h. */
#include "worker/machine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "worker/text.h"

/* The value after "NAME:" in a file of such lines; false when it is not there. */
static int value_of(const char *path, const char *name, char *value, size_t cap)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) return 0;
    char line[512];
    int found = 0;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        size_t len = strlen(name);
        if (strncmp(line, name, len) != 0) continue;
        char *at = line + len;
        at += strspn(at, " \t");
        if (*at++ != ':') continue;
        at += strspn(at, " \t");
        at[strcspn(at, "\n")] = 0;
        snprintf(value, cap, "%s", at);
        found = 1;
    }
    fclose(file);
    return found;
}

static int64_t kilobytes(const char *path, const char *name)
{
    char value[64];
    return value_of(path, name, value, sizeof value) ? (int64_t)strtoll(value, NULL, 10) * 1024 : -1;
}

int64_t machine_memory_bytes(void)
{
    return kilobytes("/proc/meminfo", "MemTotal");
}

int64_t machine_rss_bytes(void)
{
    return kilobytes("/proc/self/status", "VmRSS");
}

int64_t machine_peak_bytes(void)
{
    return kilobytes("/proc/self/status", "VmHWM");
}

int machine_cores(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count;
}

void machine_device(char *text, size_t cap)
{
    if (!value_of("/proc/cpuinfo", "model name", text, cap)) snprintf(text, cap, "unknown processor");
    text[text_valid_len(text, strlen(text))] = 0;
}

void machine_host(char *text, size_t cap)
{
    if (gethostname(text, cap) != 0) text[0] = 0;
    text[cap - 1] = 0;
    text[text_valid_len(text, strlen(text))] = 0;
    if (text[0] == 0) snprintf(text, cap, "unknown");
}
