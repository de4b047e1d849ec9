/* kvfleet keys */
#include <stddef.h>
#include <string.h>
#include "coordinator/client/commands.h"
#include "coordinator/client/exit_code.h"
#include "proto/wire.h"

#define AT(field) offsetof(struct settings, field)

static const struct conf_item keys_items[] = {
    {"keys", 0, CONF_TEXT, AT(keys), NULL, 0, 0, "DIR", "folder with the keys; made when it is not there"},
    {"role", 0, CONF_TEXT, AT(role), NULL, 0, 0, "ROLE", "what a key may do: worker, or client"},
    {NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static int make_coordinator(const struct command *command, const struct settings *settings)
{
    char public_z85[KEY_Z85_LEN + 1];
    struct kvf_err err;
    int code = keys_make_coordinator(settings->keys, &err);

    if (code == KVF_OK) code = keys_load_coordinator_public(settings->keys, public_z85, &err);
    if (code != KVF_OK) return command_fail(command, code, &err);
    printf("coordinator %s\n", public_z85);
    fflush(stdout);
    fprintf(stderr,
            "%s: coordinator.secret stays on the coordinator's machine; workers and clients need coordinator.public\n",
            settings->keys);
    return EXIT_DONE;
}

static int make_peer(const struct command *command, const struct settings *settings, const char *name)
{
    enum key_role role;
    struct key_pair pair;
    struct kvf_err err;
    int code;

    if (settings->role == NULL) return command_misuse(command, "--role is required: worker or client");
    if (strcmp(settings->role, "worker") == 0)
        role = ROLE_WORKER;
    else if (strcmp(settings->role, "client") == 0)
        role = ROLE_CLIENT;
    else
        return command_misuse(command, "--role: expected worker or client, got '%s'", settings->role);
    code = keys_make_peer(settings->keys, name, role, &err);
    if (code == KVF_OK) code = keys_load_pair(settings->keys, name, &pair, &err);
    if (code != KVF_OK) return command_fail(command, code, &err);
    printf("%s %s\n", name, pair.public_z85);
    fflush(stdout);
    fprintf(stderr, "%s: %s.secret goes to that %s, authorized/%s.public to the coordinator\n", settings->keys, name,
            settings->role, name);
    explicit_bzero(&pair, sizeof pair);
    return EXIT_DONE;
}

static int run_keys(const struct command *command, const struct settings *settings, char **rest)
{
    bool coordinator = rest[0] != NULL && strcmp(rest[0], "make-coordinator") == 0;
    bool peer = rest[0] != NULL && strcmp(rest[0], "make") == 0;

    if (settings->keys == NULL) return command_misuse(command, "--keys is required: the folder for the keys");
    if (coordinator && rest[1] == NULL) return make_coordinator(command, settings);
    if (peer && rest[1] != NULL && rest[2] == NULL) return make_peer(command, settings, rest[1]);
    return command_misuse(command, "expected make-coordinator or make NAME --role ROLE");
}

const struct command command_keys = {
    .name = "keys",
    .arguments = "make-coordinator | make NAME --role worker|client",
    .summary = "make the keys of the coordinator, of workers and of clients",
    .text = "What is there already is kept. A key that the coordinator does not know gets no answer at all; a worker's "
            "key cannot\n"
            "submit, a client's key gets no leases. Public keys are printed.",
    .example = "kvfleet keys make-coordinator --keys var/keys && kvfleet keys make gpu7 --role worker --keys var/keys",
    .items = keys_items,
    .fleet = false,
    .run = run_keys,
};
