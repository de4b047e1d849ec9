/* Key files: made once, never overwritten, refused when others can read them or when they do not fit together. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "proto/key_file.h"

static char folder[64];
static struct kvf_err err;

static void setup(void)
{
    strcpy(folder, "/tmp/kvfleet-keys.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    ck_assert_int_eq(system(command), 0);
}

static const char *in_folder(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void file_put(const char *name, const char *text, mode_t mode)
{
    FILE *out = fopen(in_folder(name), "w");
    ck_assert_ptr_nonnull(out);
    fputs(text, out);
    fclose(out);
    ck_assert_int_eq(chmod(in_folder(name), mode), 0);
}

static void file_get(const char *name, char text[256])
{
    FILE *in = fopen(in_folder(name), "r");
    ck_assert_ptr_nonnull(in);
    text[fread(text, 1, 255, in)] = 0;
    fclose(in);
}

static int file_mode(const char *name)
{
    struct stat info;
    ck_assert_int_eq(stat(in_folder(name), &info), 0);
    return (int)(info.st_mode & 07777);
}

START_TEST(made_once)
{
    char first[256], second[256], expected[256];
    struct key_pair pair, peer;
    char public_z85[KEY_Z85_LEN + 1];
    umask(0); /* the modes do not depend on it */
    ck_assert_msg(keys_make_coordinator(folder, &err) == 0, "%s", err.text);
    ck_assert_msg(keys_make_peer(folder, "worker", ROLE_WORKER, &err) == 0, "%s", err.text);
    ck_assert_msg(keys_make_peer(folder, "me.on-my_laptop", ROLE_CLIENT, &err) == 0, "%s", err.text);
    ck_assert_int_eq(file_mode("coordinator.secret"), 0600);
    ck_assert_int_eq(file_mode("worker.secret"), 0600);
    ck_assert_int_eq(file_mode("authorized/worker.public"), 0644);
    ck_assert_int_eq(keys_load_pair(folder, "coordinator", &pair, &err), 0);
    ck_assert_int_eq(keys_load_coordinator_public(folder, public_z85, &err), 0);
    ck_assert_str_eq(pair.public_z85, public_z85);
    ck_assert_str_ne(pair.public_z85, pair.secret_z85);
    ck_assert_int_eq(keys_load_pair(folder, "worker", &peer, &err), 0);
    ck_assert_str_ne(peer.public_z85, pair.public_z85);
    snprintf(expected, sizeof expected, "worker %s\n", peer.public_z85);
    file_get("authorized/worker.public", first);
    ck_assert_str_eq(first, expected);
    file_get("coordinator.secret", first);
    snprintf(expected, sizeof expected, "%s\n%s\n", pair.public_z85, pair.secret_z85);
    ck_assert_str_eq(first, expected);
    /* again: the same keys; what is missing comes back and fits */
    ck_assert_int_eq(unlink(in_folder("coordinator.public")), 0);
    ck_assert_int_eq(unlink(in_folder("authorized/worker.public")), 0);
    ck_assert_int_eq(keys_make_coordinator(folder, &err), 0);
    ck_assert_int_eq(keys_make_peer(folder, "worker", ROLE_WORKER, &err), 0);
    file_get("coordinator.secret", second);
    ck_assert_str_eq(first, second);
    ck_assert_int_eq(keys_load_coordinator_public(folder, public_z85, &err), 0);
    ck_assert_str_eq(pair.public_z85, public_z85);
    snprintf(expected, sizeof expected, "worker %s\n", peer.public_z85);
    file_get("authorized/worker.public", first);
    ck_assert_str_eq(first, expected);
    /* nothing is left lying about */
    char command[128];
    snprintf(command, sizeof command, "test $(find %s -type f | wc -l) = 6", folder);
    ck_assert_int_eq(system(command), 0);
}
END_TEST

START_TEST(made_by_many_at_once)
{
    for (int i = 0; i < 8; i++) {
        if (fork() != 0) continue;
        int code = keys_make_coordinator(folder, &err);
        if (code == 0) code = keys_make_peer(folder, "worker", ROLE_WORKER, &err);
        _exit(code != 0);
    }
    for (int i = 0; i < 8; i++) {
        int status;
        ck_assert_int_gt(wait(&status), 0);
        ck_assert_int_eq(status, 0);
    }
    struct key_pair pair;
    char public_z85[KEY_Z85_LEN + 1];
    ck_assert_int_eq(keys_load_pair(folder, "coordinator", &pair, &err), 0);
    ck_assert_int_eq(keys_load_coordinator_public(folder, public_z85, &err), 0);
    ck_assert_str_eq(pair.public_z85, public_z85);
}
END_TEST

START_TEST(never_over_another)
{
    ck_assert_int_eq(keys_make_coordinator(folder, &err), 0);
    ck_assert_int_eq(keys_make_peer(folder, "worker", ROLE_WORKER, &err), 0);
    ck_assert_int_eq(keys_make_peer(folder, "worker", ROLE_CLIENT, &err), KVF_ECONFLICT);
    ck_assert_ptr_nonnull(strstr(err.text, "expected role client and the key of worker.secret, got role worker"));
    ck_assert_int_eq(unlink(in_folder("worker.secret")), 0);
    ck_assert_int_eq(keys_make_peer(folder, "worker", ROLE_WORKER, &err), KVF_ECONFLICT);
    ck_assert_ptr_nonnull(strstr(err.text, "and another key"));
    ck_assert_int_eq(unlink(in_folder("coordinator.secret")), 0);
    ck_assert_int_eq(keys_make_coordinator(folder, &err), KVF_ECONFLICT);
}
END_TEST

START_TEST(bad_names)
{
    static const char *const bad[] = {
        "",    ".hidden", "../x",        "a/b",
        "a b", "a\n",     "coordinator", "0123456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(keys_make_peer(folder, bad[i], ROLE_WORKER, &err) == KVF_EINVAL, "%s", bad[i]);
    ck_assert_int_eq(keys_make_peer(folder, "x", ROLE_NONE, &err), KVF_EINVAL);
    struct key_pair pair;
    ck_assert_int_eq(keys_load_pair(folder, "../x", &pair, &err), KVF_EINVAL);
    ck_assert_int_eq(keys_make_coordinator("/proc/no/such", &err), KVF_EIO);
}
END_TEST

START_TEST(no_folder_is_not_the_root_folder)
{
    struct key_pair pair;
    ck_assert_int_eq(keys_make_coordinator("", &err), KVF_EINVAL);
    ck_assert_str_eq(err.text, "key folder: expected a path, got none");
    ck_assert_int_eq(keys_make_peer("", "worker", ROLE_WORKER, &err), KVF_EINVAL);
    ck_assert_int_eq(keys_load_pair("", "worker", &pair, &err), KVF_EINVAL);
}
END_TEST

START_TEST(secret_must_be_private)
{
    struct key_pair pair;
    ck_assert_int_eq(keys_make_peer(folder, "worker", ROLE_WORKER, &err), 0);
    for (int bit = 1; bit < 0100; bit <<= 1) {
        ck_assert_int_eq(chmod(in_folder("worker.secret"), (mode_t)(0600 | bit)), 0);
        ck_assert_int_eq(keys_load_pair(folder, "worker", &pair, &err), KVF_EDENIED);
    }
    ck_assert_ptr_nonnull(strstr(err.text, "worker.secret: expected mode 0600, got 0640"));
    ck_assert_int_eq(chmod(in_folder("worker.secret"), 0400), 0);
    ck_assert_int_eq(keys_load_pair(folder, "worker", &pair, &err), 0);
    ck_assert_int_eq(keys_load_pair(folder, "nobody", &pair, &err), KVF_ENOTFOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "nobody.secret: not there"));
}
END_TEST

START_TEST(bad_contents)
{
    struct key_pair a, b;
    char text[1024], public_z85[KEY_Z85_LEN + 1];
    ck_assert_int_eq(keys_make_peer(folder, "a", ROLE_WORKER, &err), 0);
    ck_assert_int_eq(keys_make_peer(folder, "b", ROLE_WORKER, &err), 0);
    ck_assert_int_eq(keys_load_pair(folder, "a", &a, &err), 0);
    ck_assert_int_eq(keys_load_pair(folder, "b", &b, &err), 0);
    static const char *const bad[] = {"", "\n", "nonsense\n", "one two\n"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        file_put("c.secret", bad[i], 0600);
        ck_assert_int_eq(keys_load_pair(folder, "c", &b, &err), KVF_ECORRUPT);
        file_put("coordinator.public", bad[i], 0644);
        ck_assert_int_eq(keys_load_coordinator_public(folder, public_z85, &err), KVF_ECORRUPT);
    }
    ck_assert_int_eq(keys_load_pair(folder, "b", &b, &err), 0);
    /* halves of two pairs; a third word; a bad character */
    snprintf(text, sizeof text, "%s\n%s\n", a.public_z85, b.secret_z85);
    file_put("c.secret", text, 0600);
    ck_assert_int_eq(keys_load_pair(folder, "c", &b, &err), KVF_ECORRUPT);
    ck_assert_ptr_nonnull(strstr(err.text, "does not belong"));
    ck_assert_ptr_null(strstr(err.text, a.public_z85));
    snprintf(text, sizeof text, "%s\n%s\n%s\n", a.public_z85, a.secret_z85, a.secret_z85);
    file_put("c.secret", text, 0600);
    ck_assert_int_eq(keys_load_pair(folder, "c", &b, &err), KVF_ECORRUPT);
    snprintf(text, sizeof text, "%s\n%s\n", a.public_z85, a.secret_z85);
    text[3] = '~';
    file_put("c.secret", text, 0600);
    ck_assert_int_eq(keys_load_pair(folder, "c", &b, &err), KVF_ECORRUPT);
    /* carriage returns are only space; a device or a folder is no key */
    snprintf(text, sizeof text, "%s\r\n%s\r\n", a.public_z85, a.secret_z85);
    file_put("c.secret", text, 0600);
    ck_assert_int_eq(keys_load_pair(folder, "c", &b, &err), 0);
    ck_assert_int_eq(unlink(in_folder("c.secret")), 0);
    ck_assert_int_eq(symlink("/dev/zero", in_folder("c.secret")), 0);
    ck_assert_int_eq(keys_load_pair(folder, "c", &b, &err), KVF_ECORRUPT);
    ck_assert_int_eq(unlink(in_folder("c.secret")), 0);
    ck_assert_int_eq(mkdir(in_folder("c.secret"), 0700), 0);
    ck_assert_int_lt(keys_load_pair(folder, "c", &b, &err), 0);
}
END_TEST

START_TEST(table_finds_all)
{
    struct key_table table;
    char name[16];
    ck_assert_int_eq(key_table_load(folder, &table, &err), KVF_ENOTFOUND);
    ck_assert_int_eq(mkdir(in_folder("authorized"), 0755), 0);
    ck_assert_int_eq(key_table_load(folder, &table, &err), 0);
    unsigned char nobody[KEY_BYTES] = {0};
    ck_assert_ptr_null(key_table_find(&table, nobody));
    key_table_free(&table);
    for (int i = 0; i < 60; i++) {
        snprintf(name, sizeof name, "key%d", i);
        ck_assert_int_eq(keys_make_peer(folder, name, i % 3 == 0 ? ROLE_CLIENT : ROLE_WORKER, &err), 0);
    }
    file_put("authorized/README", "not a key\n", 0644);
    file_put("authorized/.swp.public", "not a key\n", 0644);
    ck_assert_msg(key_table_load(folder, &table, &err) == 0, "%s", err.text);
    ck_assert_uint_eq(table.n_keys, 60);
    int found = 0;
    for (size_t i = 0; i < table.n_slots; i++) {
        if (table.slots[i].role == ROLE_NONE) continue;
        ck_assert_ptr_eq(key_table_find(&table, table.slots[i].key), &table.slots[i]);
        int number = atoi(table.slots[i].name + 3);
        ck_assert_int_eq(table.slots[i].role, number % 3 == 0 ? ROLE_CLIENT : ROLE_WORKER);
        found++;
    }
    ck_assert_int_eq(found, 60);
    ck_assert_ptr_null(key_table_find(&table, nobody));
    key_table_free(&table);
    /* The same key under two names could have two roles. */
    char text[256];
    file_get("authorized/key1.public", text);
    file_put("authorized/copy.public", text, 0644);
    ck_assert_int_eq(key_table_load(folder, &table, &err), KVF_ECONFLICT);
    ck_assert_ptr_nonnull(strstr(err.text, "key1"));
    ck_assert_ptr_nonnull(strstr(err.text, "copy"));
    file_put("authorized/copy.public", "owner rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\n", 0644);
    ck_assert_int_eq(key_table_load(folder, &table, &err), KVF_ECORRUPT);
    ck_assert_ptr_nonnull(strstr(err.text, "copy.public: expected \"worker KEY\" or \"client KEY\""));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("keys");
    TCase *tc = tcase_create("keys");
    tcase_set_timeout(tc, 120);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, made_once);
    tcase_add_test(tc, made_by_many_at_once);
    tcase_add_test(tc, never_over_another);
    tcase_add_test(tc, bad_names);
    tcase_add_test(tc, no_folder_is_not_the_root_folder);
    tcase_add_test(tc, secret_must_be_private);
    tcase_add_test(tc, bad_contents);
    tcase_add_test(tc, table_finds_all);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
