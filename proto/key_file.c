#include "proto/key_file.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define KEY_FILE_MAX 4096
#define COORDINATOR  "coordinator"

const char *key_role_name(enum key_role role)
{
    return role == ROLE_WORKER ? "worker" : role == ROLE_CLIENT ? "client" : "none";
}

/* ---- files ---- */

static int path_make(char path[PATH_MAX], struct kvf_err *err, const char *folder, const char *part, const char *name,
                     const char *suffix)
{
    /* "" and a name would be a file of the root folder */
    if (folder[0] == 0) return kvf_fail(err, KVF_EINVAL, "key folder: expected a path, got none");
    if (snprintf(path, PATH_MAX, "%s/%s%s%s", folder, part, name, suffix) < PATH_MAX) return 0;
    return kvf_fail(err, KVF_EINVAL, "key folder %s: path is too long", folder);
}

static int name_check(const char *name, struct kvf_err *err)
{
    size_t len = strlen(name);
    int good = len >= 1 && len < sizeof((struct key_entry *)0)->name && name[0] != '.';
    for (size_t i = 0; i < len; i++) good &= isalnum((unsigned char)name[i]) || strchr("._-", name[i]) != NULL;
    if (good) return 0;
    return kvf_fail(err, KVF_EINVAL, "key name \"%s\": expected 1 to 63 letters, digits, '.', '_', '-', no '.' first",
                    name);
}

/* Whole text of a small file. `secret`: only the owner may be able to read it. */
static int file_load(const char *path, int secret, char text[KEY_FILE_MAX], struct kvf_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        if (errno == ENOENT)
            return kvf_fail(err, KVF_ENOTFOUND, "key file %s: not there (kvfleet keys makes it)", path);
        return kvf_fail(err, errno == EACCES ? KVF_EDENIED : KVF_EIO, "key file %s: %s", path, strerror(errno));
    }
    struct stat info;
    int code = 0;
    size_t len = 0;
    if (fstat(fd, &info) != 0)
        code = kvf_fail(err, KVF_EIO, "key file %s: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode) || info.st_size >= KEY_FILE_MAX)
        code = kvf_fail(err, KVF_ECORRUPT, "key file %s: expected a file of a line or two", path);
    else if (secret && (info.st_mode & 077) != 0)
        code = kvf_fail(err, KVF_EDENIED,
                        "key file %s: expected mode 0600, got %04o: others can read the secret (chmod 600)", path,
                        (unsigned)info.st_mode & 07777);
    while (code == 0) {
        ssize_t got = read(fd, text + len, KEY_FILE_MAX - 1 - len);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) code = kvf_fail(err, KVF_EIO, "key file %s: %s", path, strerror(errno));
        if (got <= 0) break;
        len += (size_t)got;
    }
    close(fd);
    text[len] = 0;
    if (code == 0 && strlen(text) != len) code = kvf_fail(err, KVF_ECORRUPT, "key file %s: expected text", path);
    return code;
}

static int write_all(int fd, const char *text)
{
    for (size_t len = strlen(text); len > 0;) {
        ssize_t done = write(fd, text, len);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return -1;
        text += done;
        len -= (size_t)done;
    }
    return 0;
}

/* Makes a file that appears whole or not at all, and never over another: KVF_ECONFLICT when it is there. */
static int file_make(const char *path, const char *text, mode_t mode, struct kvf_err *err)
{
    char temporary[PATH_MAX + 32];
    snprintf(temporary, sizeof temporary, "%s.%ld.new", path, (long)getpid());
    unlink(temporary);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0) return kvf_fail(err, KVF_EIO, "key file %s: %s", temporary, strerror(errno));
    int failed = fchmod(fd, mode) != 0 || write_all(fd, text) != 0 || fsync(fd) != 0 ? errno : 0;
    close(fd);
    /* link, not rename: it fails when the name is taken */
    if (failed == 0 && link(temporary, path) != 0) failed = errno;
    unlink(temporary);
    if (failed == EEXIST) return kvf_fail(err, KVF_ECONFLICT, "key file %s: already there", path);
    if (failed != 0) return kvf_fail(err, KVF_EIO, "key file %s: %s", path, strerror(failed));
    return 0;
}

static int folder_make(const char *path, struct kvf_err *err)
{
    char part[PATH_MAX];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return kvf_fail(err, KVF_EINVAL, "key folder %s: path is too long", path);
    for (char *at = part + 1;; at++) {
        if (*at != '/' && *at != 0) continue;
        char kept = *at;
        *at = 0;
        if (mkdir(part, 0755) != 0 && errno != EEXIST)
            return kvf_fail(err, KVF_EIO, "key folder %s: %s", part, strerror(errno));
        if (kept == 0) return 0;
        *at = kept;
    }
}

/* ---- contents ---- */

/* Next word of the text, cut out of it; NULL at the end. */
static char *word_next(char **text)
{
    char *word = strtok_r(NULL, " \t\r\n", text);
    return word;
}

static int is_key(const char *word)
{
    uint8_t binary[KEY_BYTES];
    int good = word != NULL && strlen(word) == KEY_Z85_LEN && zmq_z85_decode(binary, word) != NULL;
    explicit_bzero(binary, sizeof binary);
    return good;
}

static int pair_load(const char *path, struct key_pair *out, struct kvf_err *err)
{
    char text[KEY_FILE_MAX], derived[KEY_Z85_LEN + 1];
    int code = file_load(path, 1, text, err);
    if (code != 0) return code;
    char *rest = text;
    char *public_z85 = word_next(&rest), *secret_z85 = word_next(&rest);
    if (!is_key(public_z85) || !is_key(secret_z85) || word_next(&rest) != NULL)
        code = kvf_fail(err, KVF_ECORRUPT,
                        "key file %s: expected a public and a secret key of 40 characters, one a line", path);
    else if (zmq_curve_public(derived, secret_z85) != 0 || strcmp(derived, public_z85) != 0)
        code = kvf_fail(err, KVF_ECORRUPT, "key file %s: the public key does not belong to the secret key", path);
    else {
        memcpy(out->public_z85, public_z85, sizeof out->public_z85);
        memcpy(out->secret_z85, secret_z85, sizeof out->secret_z85);
    }
    explicit_bzero(text, sizeof text);
    return code;
}

/* The pair in `path`, made first when there is none. */
static int pair_make(const char *path, struct key_pair *out, struct kvf_err *err)
{
    int code = pair_load(path, out, err);
    if (code != KVF_ENOTFOUND) return code;
    if (zmq_curve_keypair(out->public_z85, out->secret_z85) != 0)
        return kvf_fail(err, KVF_EUNSUPPORTED, "keys: %s", zmq_strerror(errno));
    char text[2 * KEY_Z85_LEN + 3];
    snprintf(text, sizeof text, "%s\n%s\n", out->public_z85, out->secret_z85);
    code = file_make(path, text, 0600, err);
    explicit_bzero(text, sizeof text);
    /* Somebody else made it in between: theirs holds. */
    return code == KVF_ECONFLICT ? pair_load(path, out, err) : code;
}

static int public_load(const char *path, char out[KEY_Z85_LEN + 1], struct kvf_err *err)
{
    char text[KEY_FILE_MAX], *rest = text;
    int code = file_load(path, 0, text, err);
    if (code != 0) return code;
    char *word = word_next(&rest);
    if (!is_key(word) || word_next(&rest) != NULL)
        return kvf_fail(err, KVF_ECORRUPT, "key file %s: expected one key of 40 characters", path);
    memcpy(out, word, KEY_Z85_LEN + 1);
    return 0;
}

static int authorized_load(const char *path, struct key_entry *out, struct kvf_err *err)
{
    char text[KEY_FILE_MAX], *rest = text;
    int code = file_load(path, 0, text, err);
    if (code != 0) return code;
    char *role = word_next(&rest), *word = word_next(&rest);
    out->role = role == NULL                  ? ROLE_NONE
                : strcmp(role, "worker") == 0 ? ROLE_WORKER
                : strcmp(role, "client") == 0 ? ROLE_CLIENT
                                              : ROLE_NONE;
    if (out->role == ROLE_NONE || !is_key(word) || word_next(&rest) != NULL)
        return kvf_fail(err, KVF_ECORRUPT,
                        "key file %s: expected \"worker KEY\" or \"client KEY\" with a key of 40 characters", path);
    memcpy(out->key_z85, word, sizeof out->key_z85);
    zmq_z85_decode(out->key, word);
    return 0;
}

int keys_make_coordinator(const char *folder, struct kvf_err *err)
{
    char path[PATH_MAX], text[KEY_Z85_LEN + 2], present[KEY_Z85_LEN + 1];
    struct key_pair pair;
    int code = path_make(path, err, folder, "authorized", "", "");
    if (code == 0) code = folder_make(path, err);
    if (code == 0) code = path_make(path, err, folder, COORDINATOR, "", ".secret");
    if (code == 0) code = pair_make(path, &pair, err);
    if (code != 0) return code;
    explicit_bzero(pair.secret_z85, sizeof pair.secret_z85);
    if ((code = path_make(path, err, folder, COORDINATOR, "", ".public")) != 0) return code;
    snprintf(text, sizeof text, "%s\n", pair.public_z85);
    code = file_make(path, text, 0644, err);
    if (code != KVF_ECONFLICT) return code;
    if ((code = public_load(path, present, err)) != 0) return code;
    if (strcmp(present, pair.public_z85) == 0) return 0;
    return kvf_fail(err, KVF_ECONFLICT, "key file %s: belongs to another coordinator.secret", path);
}

int keys_make_peer(const char *folder, const char *name, enum key_role role, struct kvf_err *err)
{
    int code = name_check(name, err);
    if (code != 0) return code;
    if (strcmp(name, COORDINATOR) == 0 || (role != ROLE_WORKER && role != ROLE_CLIENT))
        return kvf_fail(err, KVF_EINVAL, "key %s: expected role worker or client and a name other than " COORDINATOR,
                        name);
    char path[PATH_MAX], text[KEY_Z85_LEN + 16];
    struct key_pair pair;
    struct key_entry present;
    if ((code = path_make(path, err, folder, "authorized", "", "")) == 0) code = folder_make(path, err);
    if (code == 0) code = path_make(path, err, folder, name, "", ".secret");
    if (code == 0) code = pair_make(path, &pair, err);
    if (code != 0) return code;
    explicit_bzero(pair.secret_z85, sizeof pair.secret_z85);
    if ((code = path_make(path, err, folder, "authorized/", name, ".public")) != 0) return code;
    snprintf(text, sizeof text, "%s %s\n", key_role_name(role), pair.public_z85);
    code = file_make(path, text, 0644, err);
    if (code != KVF_ECONFLICT) return code;
    if ((code = authorized_load(path, &present, err)) != 0) return code;
    if (present.role == role && strcmp(present.key_z85, pair.public_z85) == 0) return 0;
    return kvf_fail(err, KVF_ECONFLICT, "key file %s: expected role %s and the key of %s.secret, got role %s%s", path,
                    key_role_name(role), name, key_role_name(present.role),
                    strcmp(present.key_z85, pair.public_z85) == 0 ? "" : " and another key");
}

int keys_load_pair(const char *folder, const char *name, struct key_pair *out, struct kvf_err *err)
{
    char path[PATH_MAX];
    int code = name_check(name, err);
    if (code == 0) code = path_make(path, err, folder, name, "", ".secret");
    return code != 0 ? code : pair_load(path, out, err);
}

int keys_load_coordinator_public(const char *folder, char public_z85[KEY_Z85_LEN + 1], struct kvf_err *err)
{
    char path[PATH_MAX];
    int code = path_make(path, err, folder, COORDINATOR, "", ".public");
    return code != 0 ? code : public_load(path, public_z85, err);
}

/* ---- table ---- */

static size_t slot_of(const struct key_table *table, const unsigned char key[KEY_BYTES])
{
    /* A Curve25519 public key is as good as random: its own bytes are the hash. */
    size_t hash;
    memcpy(&hash, key, sizeof hash);
    size_t slot = hash & (table->n_slots - 1);
    while (table->slots[slot].role != ROLE_NONE && memcmp(table->slots[slot].key, key, KEY_BYTES) != 0)
        slot = (slot + 1) & (table->n_slots - 1);
    return slot;
}

struct key_entry *key_table_find(const struct key_table *table, const unsigned char key[KEY_BYTES])
{
    if (table->n_slots == 0) return NULL;
    struct key_entry *entry = &table->slots[slot_of(table, key)];
    return entry->role == ROLE_NONE ? NULL : entry;
}

static int table_add(struct key_table *table, const struct key_entry *entry, struct kvf_err *err)
{
    if (2 * (table->n_keys + 1) > table->n_slots) {
        struct key_table larger = {.n_slots = table->n_slots == 0 ? 16 : 2 * table->n_slots, .n_keys = table->n_keys};
        larger.slots = calloc(larger.n_slots, sizeof *larger.slots);
        if (larger.slots == NULL) return kvf_fail(err, KVF_ENOMEM, "keys: out of memory");
        for (size_t i = 0; i < table->n_slots; i++)
            if (table->slots[i].role != ROLE_NONE)
                larger.slots[slot_of(&larger, table->slots[i].key)] = table->slots[i];
        free(table->slots);
        *table = larger;
    }
    struct key_entry *slot = &table->slots[slot_of(table, entry->key)];
    if (slot->role != ROLE_NONE)
        return kvf_fail(err, KVF_ECONFLICT, "authorized keys: %s and %s are the same key", slot->name, entry->name);
    *slot = *entry;
    table->n_keys++;
    return 0;
}

int key_table_load(const char *folder, struct key_table *out, struct kvf_err *err)
{
    static const char suffix[] = ".public";
    char path[PATH_MAX];
    *out = (struct key_table){0};
    int code = path_make(path, err, folder, "authorized", "", "");
    if (code != 0) return code;
    DIR *dir = opendir(path);
    if (dir == NULL)
        return kvf_fail(err, errno == ENOENT ? KVF_ENOTFOUND : KVF_EIO, "key folder %s: %s", path, strerror(errno));
    for (struct dirent *file; code == 0 && (file = readdir(dir)) != NULL;) {
        size_t len = strlen(file->d_name);
        if (file->d_name[0] == '.' || len < sizeof suffix ||
            strcmp(file->d_name + len - (sizeof suffix - 1), suffix) != 0)
            continue;
        struct key_entry entry = {.role = ROLE_NONE};
        file->d_name[len - (sizeof suffix - 1)] = 0;
        code = name_check(file->d_name, err);
        if (code == 0) snprintf(entry.name, sizeof entry.name, "%s", file->d_name);
        if (code == 0) code = path_make(path, err, folder, "authorized/", file->d_name, suffix);
        if (code == 0) code = authorized_load(path, &entry, err);
        if (code == 0) code = table_add(out, &entry, err);
    }
    closedir(dir);
    if (code != 0) key_table_free(out);
    return code;
}

void key_table_free(struct key_table *table)
{
    free(table->slots);
    *table = (struct key_table){0};
}
