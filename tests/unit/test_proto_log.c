/* The log: one write a line, and no value can look like a line or a key of its own. */
#include <check.h>
#include <errno.h>
#include <inttypes.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "proto/log.h"

static int tap[2]; /* stderr is a datagram socket: each write is one packet */
static char line[8192];

static void setup(void)
{
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_DGRAM, 0, tap), 0);
    ck_assert_int_ge(dup2(tap[1], STDERR_FILENO), 0);
    log_set_level(LOG_INFO_LEVEL);
}

/* The next packet; "" when there is none. */
static const char *line_next(void)
{
    ssize_t len = recv(tap[0], line, sizeof line - 1, MSG_DONTWAIT);
    line[len < 0 ? 0 : len] = 0;
    return line;
}

/* What follows time and level. */
static const char *event_next(void)
{
    line_next();
    ck_assert_uint_gt(strlen(line), 28);
    ck_assert_int_eq(line[strlen(line) - 1], '\n');
    line[strlen(line) - 1] = 0;
    ck_assert_ptr_null(strchr(line, '\n'));
    return strchr(line + 28, ' ') + 1;
}

START_TEST(line_shape)
{
    regex_t shape;
    ck_assert_int_eq(regcomp(&shape,
                             "^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9][.][0-9]{6}Z info "
                             "worker_joined worker=w1 models=3\n$",
                             REG_EXTENDED | REG_NOSUB),
                     0);
    errno = EAGAIN;
    log_event(LOG_INFO_LEVEL, "worker_joined", "worker=%s models=%d", "w1", 3);
    ck_assert_int_eq(errno, EAGAIN);
    ck_assert_msg(regexec(&shape, line_next(), 0, NULL, 0) == 0, "%s", line);
    ck_assert_str_eq(line_next(), "");
    regfree(&shape);
    log_event(LOG_INFO_LEVEL, "started", "%s", "");
    ck_assert_str_eq(event_next(), "started \"\"");
}
END_TEST

START_TEST(levels)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int level = LOG_ERROR_LEVEL; level <= LOG_DEBUG_LEVEL; level++) {
        ck_assert_int_eq(log_parse_level(names[level]), level);
        log_set_level((enum log_level)level);
        for (int said = LOG_ERROR_LEVEL; said <= LOG_DEBUG_LEVEL; said++) {
            log_event((enum log_level)said, "x", "a=%d", 1);
            ck_assert_int_eq(line_next()[0] != 0, said <= level);
            if (said <= level) ck_assert_ptr_nonnull(strstr(line, names[said]));
        }
    }
    ck_assert_int_eq(log_parse_level("loud"), -1);
    ck_assert_int_eq(log_parse_level(""), -1);
    ck_assert_int_eq(log_parse_level(NULL), -1);
}
END_TEST

START_TEST(values_are_escaped)
{
    static const struct {
        const char *value, *expected;
    } cases[] = {
        {"plain-text/1.2:3", "v=plain-text/1.2:3"},
        {"two words", "v=\"two words\""},
        {"", "v=\"\""},
        {"a=b", "v=\"a=b\""},
        {"say \"hi\"", "v=\"say \\\"hi\\\"\""},
        {"c:\\x", "v=\"c:\\\\x\""},
        {"x\n2026-01-01T00:00:00.000000Z error forged a=1", "v=\"x\\n2026-01-01T00:00:00.000000Z error forged a=1\""},
        {"bell\a esc\x1b[31m del\x7f\t\r", "v=\"bell\\x07 esc\\x1b[31m del\\x7f\\x09\\x0d\""},
        {"caf\xc3\xa9 \xe2\x82\xac", "v=\"caf\xc3\xa9 \xe2\x82\xac\""},
        {"c1\xc2\x9b"
         "31m",
         "v=\"c1\\xc2\\x9b31m\""},
        {"bad\xff\xc3", "v=\"bad\\xff\\xc3\""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char expected[256];
        log_event(LOG_WARN_LEVEL, "e", "v=%s z=%d", cases[i].value, 1);
        snprintf(expected, sizeof expected, "e %s z=1", cases[i].expected);
        ck_assert_str_eq(event_next(), expected);
    }
    log_event(LOG_WARN_LEVEL, "e", "v=\"%s\" n=%d", "quoted \"already\"", 2);
    ck_assert_str_eq(event_next(), "e v=\"quoted \\\"already\\\"\" n=2");
}
END_TEST

START_TEST(conversions)
{
    const char *null = NULL;
    log_event(LOG_INFO_LEVEL, "e", "a=%d b=%i c=%u d=%ld e=%lu f=%lld g=%llu h=%zu", -1, 2, 3u, -4L, 5UL, -6LL, 7ULL,
              (size_t)8);
    ck_assert_str_eq(event_next(), "e a=-1 b=2 c=3 d=-4 e=5 f=-6 g=7 h=8");
    log_event(LOG_INFO_LEVEL, "e", "a=%" PRId64 " b=%" PRIu64 " c=%jd d=%td e=%hhu f=%hd g=%x h=%08.3f i=%g j=%c",
              INT64_MIN, UINT64_MAX, (intmax_t)-3, (ptrdiff_t)4, (unsigned char)5, (short)-6, 255u, 3.14159, 0.5, 'q');
    ck_assert_str_eq(event_next(),
                     "e a=-9223372036854775808 b=18446744073709551615 c=-3 d=4 e=5 f=-6 g=ff h=0003.142 i=0.5 j=q");
    log_event(LOG_INFO_LEVEL, "e", "a=%.*s b=%.3s c=%5s d=%-4d. e=%*d f=100%% g=%Lg", 3, "abcdef", "abcdef", "ab", 7, 3,
              5, 1.5L);
    ck_assert_str_eq(event_next(), "e a=abc b=abc c=\"   ab\" d=\"7   \". e=\"  5\" f=100% g=1.5");
    /* text that has no end of its own is never read beyond its length */
    char *bounded = malloc(3);
    memcpy(bounded, "abc", 3);
    log_event(LOG_INFO_LEVEL, "e", "a=%.*s z=%s", 3, bounded, null == NULL ? "(null)" : null);
    ck_assert_str_eq(event_next(), "e a=abc z=(null)");
    free(bounded);
}
END_TEST

START_TEST(long_lines_are_cut)
{
    char *text = malloc(10001);
    memset(text, 'x', 10000);
    text[10000] = 0;
    log_event(LOG_INFO_LEVEL, "e", "a=%s b=%d", text, 1);
    log_event(LOG_INFO_LEVEL, "e", "%s %s", "short", text);
    log_event(LOG_INFO_LEVEL, "e", "a=%d", 2);
    for (int i = 0; i < 2; i++) {
        line_next();
        ck_assert_uint_le(strlen(line), 4096);
        ck_assert_uint_gt(strlen(line), 30);
        ck_assert_str_eq(line + strlen(line) - 4, "...\n");
    }
    ck_assert_str_eq(event_next(), "e a=2");
    /* every length near the limit, with what grows by escaping */
    for (size_t len = 1000; len < 4200; len++) {
        memset(text, len & 1 ? '\n' : 'y', len);
        text[len] = 0;
        log_event(LOG_INFO_LEVEL, "e", "a=%s", text);
        line_next();
        ck_assert_uint_le(strlen(line), 4096);
        ck_assert_int_eq(line[strlen(line) - 1], '\n');
    }
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("log");
    TCase *tc = tcase_create("log");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_test(tc, line_shape);
    tcase_add_test(tc, levels);
    tcase_add_test(tc, values_are_escaped);
    tcase_add_test(tc, conversions);
    tcase_add_test(tc, long_lines_are_cut);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
