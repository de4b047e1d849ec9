/* dataset.c: reading of data set files. See dataset.h. */
#include "worker/dataset.h"
#include "worker/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <jansson.h>
#include <sodium.h>

#define LINE_BYTES_MAX (4u << 20) /* a problem of the largest size with every character escaped fits */

/* ---- bytes ---- */

static void hex_of(const unsigned char digest[crypto_hash_sha256_BYTES], char hex[DATASET_HASH_HEX + 1])
{
    sodium_bin2hex(hex, DATASET_HASH_HEX + 1, digest, crypto_hash_sha256_BYTES);
}

static void content_hash(const char *problem, const char *answer, char hex[DATASET_HASH_HEX + 1])
{
    crypto_hash_sha256_state state;
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_init(&state);
    crypto_hash_sha256_update(&state, (const unsigned char *)problem, strlen(problem) + 1); /* with its NUL */
    crypto_hash_sha256_update(&state, (const unsigned char *)answer, strlen(answer));
    crypto_hash_sha256_final(&state, digest);
    hex_of(digest, hex);
}

/* What is not a file has no end that can be seen: a device would fill the memory. */
#define STREAM_MAX_BYTES (1 << 28)

static int file_slurp(const char *path, char **bytes, size_t *len, struct kvf_err *err)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return kvf_fail(err, errno == ENOENT ? KVF_ENOTFOUND : KVF_EIO, "%s: cannot open data set: %s", path,
                        strerror(errno));
    struct stat facts;
    if (fstat(fileno(file), &facts) != 0 || S_ISDIR(facts.st_mode)) {
        fclose(file);
        return kvf_fail(err, KVF_EINVAL, "%s: expected a JSON Lines file, got a folder", path);
    }
    /* Grown as it is read: a pipe has no size. */
    size_t cap = S_ISREG(facts.st_mode) && facts.st_size > 0 ? (size_t)facts.st_size + 1 : 65536;
    char *buffer = malloc(cap);
    size_t have = 0;
    while (buffer != NULL) {
        size_t got = fread(buffer + have, 1, cap - have, file);
        have += got;
        if (got == 0) break;
        if (!S_ISREG(facts.st_mode) && have > STREAM_MAX_BYTES) {
            free(buffer);
            fclose(file);
            return kvf_fail(err, KVF_EINVAL, "%s: expected at most %d bytes from a pipe or device, got more", path,
                            STREAM_MAX_BYTES);
        }
        if (have == cap) {
            char *grown = realloc(buffer, cap * 2);
            if (grown == NULL) free(buffer);
            buffer = grown;
            cap *= 2;
        }
    }
    int broken = ferror(file), why = errno;
    fclose(file);
    if (buffer == NULL) return kvf_fail(err, KVF_ENOMEM, "%s: out of memory after %zu bytes", path, have);
    if (broken) {
        free(buffer);
        return kvf_fail(err, KVF_EIO, "%s: cannot read data set: %s", path, strerror(why));
    }
    *bytes = buffer;
    *len = have;
    return 0;
}

/* ---- a set of texts: open addressing, the texts belong to the problems ---- */

struct text_set {
    const char **slots;
    uint64_t *values; /* of each text: the caller's figure, 0 at first */
    size_t cap, used;
};

static uint64_t text_key(const char *text)
{
    uint64_t key = 1469598103934665603u;
    for (; *text != 0; text++) key = (key ^ (unsigned char)*text) * 1099511628211u;
    return key;
}

static size_t set_slot(const struct text_set *set, const char *text)
{
    size_t at = text_key(text) & (set->cap - 1);
    while (set->slots[at] != NULL && strcmp(set->slots[at], text) != 0) at = (at + 1) & (set->cap - 1);
    return at;
}

static int set_reserve(struct text_set *set)
{
    if (set->used * 2 < set->cap) return 0;
    struct text_set larger = {.cap = set->cap == 0 ? 1024 : set->cap * 2, .used = set->used};
    larger.slots = calloc(larger.cap, sizeof *larger.slots);
    larger.values = calloc(larger.cap, sizeof *larger.values);
    if (larger.slots == NULL || larger.values == NULL) {
        free(larger.slots);
        free(larger.values);
        return KVF_ENOMEM;
    }
    for (size_t k = 0; k < set->cap; k++) {
        if (set->slots[k] == NULL) continue;
        size_t at = set_slot(&larger, set->slots[k]);
        larger.slots[at] = set->slots[k];
        larger.values[at] = set->values[k];
    }
    free(set->slots);
    free(set->values);
    *set = larger;
    return 0;
}

/* The value of `text`, which is 0 when it was not there. Room must have been reserved. */
static uint64_t *set_value(struct text_set *set, const char *text)
{
    size_t at = set_slot(set, text);
    if (set->slots[at] == NULL) {
        set->slots[at] = text;
        set->used++;
    }
    return &set->values[at];
}

static void set_free(struct text_set *set)
{
    free(set->slots);
    free(set->values);
}

/* ---- a line ---- */

struct reader {
    const char *path;
    int64_t line;
    struct text_set names;
};

__attribute__((format(printf, 3, 4))) static int line_fail(const struct reader *reader, struct kvf_err *err,
                                                           const char *format, ...)
{
    char why[KVF_ERR_MAX / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    return kvf_fail(err, KVF_ECORRUPT, "%s:%lld: %s", reader->path, (long long)reader->line, why);
}

static const char *json_kind(const json_t *value)
{
    static const char *const kinds[] = {"an object", "an array", "text",  "an integer",
                                        "a number",  "true",     "false", "null"};
    return kinds[json_typeof(value)];
}

/* The shortest decimal that reads back as the same double. */
static char *real_text(double value)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    return strdup(text);
}

/* Text of a field, malloc'd: of a string, or, where `numbers` allow it (1: integers, 2: all), of a number. */
static int field_text(const struct reader *reader, const char *field, const json_t *value, int numbers, size_t max,
                      char **out, struct kvf_err *err)
{
    char *text = NULL;
    if (json_is_string(value)) {
        if (json_string_length(value) > max)
            return line_fail(reader, err, "field \"%s\": expected at most %zu bytes, got %zu", field, max,
                             json_string_length(value));
        if (json_string_length(value) == 0)
            return line_fail(reader, err, "field \"%s\": expected text, got an empty string", field);
        text = strdup(json_string_value(value));
    } else if (json_is_integer(value) && numbers > 0) {
        char digits[24];
        snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(value));
        text = strdup(digits);
    } else if (json_is_real(value) && numbers > 1) {
        text = real_text(json_real_value(value));
    } else {
        return line_fail(reader, err, "field \"%s\": expected text%s, got %s", field,
                         numbers == 2   ? " or a number"
                         : numbers == 1 ? " or an integer"
                                        : "",
                         json_kind(value));
    }
    if (text == NULL) return kvf_fail(err, KVF_ENOMEM, "%s:%lld: out of memory", reader->path, (long long)reader->line);
    *out = text;
    return 0;
}

/* The first of two spellings of a field that is there. */
static const json_t *field_of(const json_t *object, const char *name, const char *other, const char **found)
{
    const json_t *value = json_object_get(object, name);
    *found = name;
    if (value != NULL) return value;
    *found = other;
    return json_object_get(object, other);
}

static void problem_free(struct dataset_problem *problem)
{
    free(problem->name);
    free(problem->problem);
    free(problem->answer);
    memset(problem, 0, sizeof *problem);
}

static int problem_fill(struct reader *reader, const json_t *object, struct dataset_problem *out, struct kvf_err *err)
{
    const char *field;
    if (!json_is_object(object)) return line_fail(reader, err, "expected a JSON object, got %s", json_kind(object));
    const json_t *value = field_of(object, "problem", "question", &field);
    if (value == NULL) return line_fail(reader, err, "field \"problem\" (or \"question\") is missing");
    int rc = field_text(reader, field, value, 0, DATASET_PROBLEM_BYTES, &out->problem, err);
    if (rc != 0) return rc;
    value = json_object_get(object, field = "answer");
    if (value == NULL) return line_fail(reader, err, "field \"answer\" is missing");
    rc = field_text(reader, field, value, 2, DATASET_ANSWER_BYTES, &out->answer, err);
    if (rc != 0) return rc;
    value = field_of(object, "id", "unique_id", &field);
    if (value != NULL) {
        rc = field_text(reader, field, value, 1, DATASET_NAME_BYTES, &out->name, err);
        if (rc != 0) return rc;
    } else {
        char digits[24];
        snprintf(digits, sizeof digits, "%lld", (long long)reader->line);
        out->name = strdup(digits);
        if (out->name == NULL) return kvf_fail(err, KVF_ENOMEM, "%s: out of memory", reader->path);
        field = "line number";
    }
    if (set_reserve(&reader->names) != 0) return kvf_fail(err, KVF_ENOMEM, "%s: out of memory", reader->path);
    uint64_t *first = set_value(&reader->names, out->name);
    if (*first != 0)
        return line_fail(reader, err, "%s \"%s\" is taken: line %llu has it", field, out->name,
                         (unsigned long long)*first);
    *first = (uint64_t)reader->line;
    content_hash(out->problem, out->answer, out->content_hash);
    out->line = reader->line;
    return 0;
}

static int line_parse(struct reader *reader, const char *line, size_t len, struct dataset_problem *out,
                      struct kvf_err *err)
{
    if (len > LINE_BYTES_MAX)
        return line_fail(reader, err, "expected a line of at most %u bytes, got %zu", LINE_BYTES_MAX, len);
    const char *nul = memchr(line, 0, len);
    if (nul != NULL) return line_fail(reader, err, "NUL byte at column %zu", (size_t)(nul - line) + 1);
    size_t good = text_valid_len(line, len);
    if (good < len)
        return line_fail(reader, err, "not UTF-8: byte 0x%02x at column %zu", (unsigned char)line[good], good + 1);
    json_error_t trouble;
    json_t *object = json_loadb(line, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &trouble);
    if (object == NULL && json_error_code(&trouble) == json_error_null_character)
        return line_fail(reader, err, "a string holds \\u0000, a NUL, which no text may (column %d)", trouble.column);
    if (object == NULL) return line_fail(reader, err, "not JSON: %s (column %d)", trouble.text, trouble.column);
    int rc = problem_fill(reader, object, out, err);
    json_decref(object);
    return rc;
}

/* ---- the file ---- */

static void name_of(const char *path, char name[DATASET_NAME_BYTES + 1])
{
    const char *base = strrchr(path, '/');
    base = base == NULL ? path : base + 1;
    size_t len = strlen(base);
    if (len > 6 && strcmp(base + len - 6, ".jsonl") == 0) len -= 6;
    if (len > DATASET_NAME_BYTES) len = DATASET_NAME_BYTES;
    len = text_valid_len(base, len); /* it travels as UTF-8 text */
    memcpy(name, base, len);
    name[len] = 0;
}

static int dataset_room(struct dataset *dataset, size_t *cap)
{
    if (dataset->count < *cap) return 0;
    size_t larger = *cap == 0 ? 256 : *cap * 2;
    struct dataset_problem *grown = realloc(dataset->problems, larger * sizeof *grown);
    if (grown == NULL) return KVF_ENOMEM;
    dataset->problems = grown;
    *cap = larger;
    return 0;
}

static bool blank(const char *line, size_t len)
{
    for (size_t k = 0; k < len; k++)
        if (line[k] != ' ' && line[k] != '\t') return false;
    return true;
}

static int lines_read(struct reader *reader, const char *bytes, size_t len, const struct dataset_options *options,
                      struct dataset *out, struct kvf_err *err)
{
    size_t at = len >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0, cap = 0;
    while (at < len && (options->limit == 0 || out->count < (size_t)options->limit)) {
        const char *line = bytes + at;
        const char *end = memchr(line, '\n', len - at);
        size_t line_len = end == NULL ? len - at : (size_t)(end - line);
        at += line_len + 1;
        reader->line++;
        if (line_len > 0 && line[line_len - 1] == '\r') line_len--;
        if (blank(line, line_len)) continue;
        if (dataset_room(out, &cap) != 0) return kvf_fail(err, KVF_ENOMEM, "%s: out of memory", reader->path);
        struct dataset_problem *problem = &out->problems[out->count];
        struct kvf_err why = {""};
        memset(problem, 0, sizeof *problem);
        int rc = line_parse(reader, line, line_len, problem, &why);
        if (rc == 0) {
            out->count++;
            continue;
        }
        problem_free(problem);
        if (rc != KVF_ECORRUPT || !options->skip_bad_lines) return kvf_fail(err, rc, "%s", why.text);
        if (out->skipped_lines++ == 0) out->first_skipped = why;
    }
    return 0;
}

/* Once the array is complete, for the keys lie in it. */
static int ordinals_count(struct dataset *dataset)
{
    struct text_set contents = {0};
    int rc = 0;
    for (size_t k = 0; k < dataset->count && rc == 0; k++) {
        rc = set_reserve(&contents);
        if (rc == 0) dataset->problems[k].ordinal = (*set_value(&contents, dataset->problems[k].content_hash))++;
    }
    set_free(&contents);
    return rc;
}

int dataset_read(const char *path, const struct dataset_options *options, struct dataset *out, struct kvf_err *err)
{
    static const struct dataset_options all = {0};
    if (options == NULL) options = &all;
    memset(out, 0, sizeof *out);
    if (options->limit < 0)
        return kvf_fail(err, KVF_EINVAL, "limit: expected 0 or more, got %lld", (long long)options->limit);
    if (sodium_init() < 0) return kvf_fail(err, KVF_EIO, "libsodium cannot start");
    char *bytes = NULL;
    size_t len = 0;
    int rc = file_slurp(path, &bytes, &len, err);
    if (rc != 0) return rc;
    unsigned char digest[crypto_hash_sha256_BYTES];
    crypto_hash_sha256(digest, (const unsigned char *)bytes, len);
    hex_of(digest, out->hash);
    name_of(path, out->name);
    struct reader reader = {.path = path};
    rc = lines_read(&reader, bytes, len, options, out, err);
    set_free(&reader.names);
    free(bytes);
    if (rc == 0 && ordinals_count(out) != 0) rc = kvf_fail(err, KVF_ENOMEM, "%s: out of memory", path);
    if (rc == 0 && out->count == 0) {
        if (out->skipped_lines > 0)
            rc =
                kvf_fail(err, KVF_ECORRUPT, "%s: no good line: expected at least one, got %lld bad ones, the first: %s",
                         path, (long long)out->skipped_lines, out->first_skipped.text);
        else
            rc = kvf_fail(err, KVF_EINVAL, "%s: empty: expected at least one problem, got none", path);
    }
    if (rc != 0) dataset_free(out);
    return rc;
}

void dataset_free(struct dataset *dataset)
{
    for (size_t k = 0; k < dataset->count; k++) problem_free(&dataset->problems[k]);
    free(dataset->problems);
    memset(dataset, 0, sizeof *dataset);
}
