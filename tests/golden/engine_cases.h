/* engine_cases.h: what the tokenizer and loader tests share. Reads with Check assertions, so that a file that is there
 * but cannot be read fails the test, and takes U+0000 in texts. */
#ifndef KVF_TEST_ENGINE_CASES_H
#define KVF_TEST_ENGINE_CASES_H

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES_SKIP 77
#define CASES_PATH 4096

/* The value of an environment variable, or the end of the program as a skip. Called before the suite runs. */
static inline const char *cases_require(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL || value[0] == '\0') {
        printf("skip: %s is not set\n", name);
        exit(CASES_SKIP);
    }
    return value;
}

/* path[CASES_PATH] = $variable/relative */
static inline void cases_path(char *path, const char *variable, const char *relative)
{
    int len = snprintf(path, CASES_PATH, "%s/%s", getenv(variable), relative);
    ck_assert_msg(len > 0 && len < CASES_PATH, "path too long: %s", relative);
}

/* Rows of a JSON-lines file below $KVF_GOLDEN as an array; the caller calls json_decref. */
static inline json_t *cases_rows(const char *relative)
{
    char path[CASES_PATH];
    cases_path(path, "KVF_GOLDEN", relative);
    FILE *file = fopen(path, "r");
    ck_assert_msg(file != NULL, "cannot open %s", path);
    json_t *rows = json_array(), *row;
    json_error_t error;
    char *line = NULL;
    size_t room = 0;
    for (ssize_t len; (len = getline(&line, &room, file)) > 0; json_array_append_new(rows, row)) {
        row = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, &error);
        ck_assert_msg(row != NULL, "%s, row %zu: %s", path, json_array_size(rows) + 1, error.text);
    }
    free(line);
    fclose(file);
    return rows;
}

static inline const char *cases_text(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    ck_assert_msg(text != NULL, "\"%s\" is not a string", key);
    return text;
}

/* Runs the suite; the exit status of main. */
static inline int cases_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
