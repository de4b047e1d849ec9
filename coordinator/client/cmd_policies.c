/* kvfleet policies: what policies are made of, from the tables of alloc/. */
#include <stddef.h>
#include <string.h>
#include "alloc/policy.h"
#include "coordinator/client/commands.h"
#include "coordinator/client/exit_code.h"
#include "coordinator/client/table.h"
#include "coordinator/client/view.h"

#define AT(field) offsetof(struct settings, field)

static const struct conf_item policies_items[] = {
    {"json", 0, CONF_BOOL, AT(json), "false", 0, 0, NULL, "print JSON"},
    {NULL, 0, CONF_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static const struct {
    const char *title, *key, *meaning;
    enum policy_part_kind kind;
} sections[] = {
    {"Presets", "presets", "is", PART_PRESET},
    {"Scorers: which entries stay", "scorers", NULL, PART_SCORER},
    {"Layer plans: how many each layer keeps", "plans", "budget", PART_PLAN},
    {"Head routers: how many each head of a layer keeps", "routers", "budget", PART_ROUTER},
};
enum { SECTIONS = sizeof sections / sizeof sections[0] };

static void part_table(int section)
{
    struct table *table = table_new();
    struct policy_part part;

    table_column(table, "name", TABLE_LEFT);
    if (sections[section].meaning != NULL) table_column(table, sections[section].meaning, TABLE_LEFT);
    table_column(table, "source", TABLE_LEFT);
    for (int i = 0; policy_part_at(sections[section].kind, i, &part); i++) {
        table_cell(table, part.name);
        if (sections[section].meaning != NULL) table_cell(table, part.meaning);
        table_cell(table, part.source[0] != '\0' ? part.source : NULL);
    }
    printf("%s\n\n", sections[section].title);
    table_print(table, 0, 0, stdout);
    printf("\n");
    table_free(&table);
}

static void parameter_table(void)
{
    static const char *const headers[] = {"key", "default", "values", "read by", "what it is"};
    struct table *table = table_new();
    struct policy_parameter parameter;

    for (int i = 0; i < 5; i++) table_column(table, headers[i], TABLE_LEFT);
    for (int i = 0; policy_parameter_at(i, &parameter); i++) {
        table_cell(table, parameter.name);
        table_cell(table, parameter.standard);
        table_cell(table, parameter.values);
        table_cell(table, parameter.used_by);
        table_cell(table, parameter.meaning);
    }
    printf("Parameters (a scorer may have its own default of sinks: kvfleet policies POLICY)\n\n");
    table_print(table, 0, 0, stdout);
    table_free(&table);
}

/* One policy: its canonical name, and every parameter that it reads. */
static void policy_print(const struct policy *policy)
{
    static const char *const headers[] = {"key", "value", "values", "what it is"};
    struct table *table = table_new();
    struct policy_parameter parameter;
    char value[32];

    for (int i = 0; i < 4; i++) table_column(table, headers[i], TABLE_LEFT);
    for (int i = 0; policy_parameter_at(i, &parameter); i++) {
        if (!policy_parameter_of(policy, i, value, sizeof value)) continue;
        table_cell(table, parameter.name);
        table_cell(table, value);
        table_cell(table, parameter.values);
        table_cell(table, parameter.meaning);
    }
    printf("%s%s%s\n", policy->name, policy_needs_profile(policy) ? "; needs a wave profile" : "",
           policy_plan_is_online(policy) ? "; measures its layer budgets at every compaction" : "");
    if (table_rows(table) > 0) {
        printf("\n");
        table_print(table, 0, 0, stdout);
    }
    table_free(&table);
}

static json_t *policy_json(const struct policy *policy)
{
    struct policy_parameter parameter;
    char value[32];
    json_t *values = json_object();

    for (int i = 0; policy_parameter_at(i, &parameter); i++)
        if (policy_parameter_of(policy, i, value, sizeof value))
            json_object_set_new(values, parameter.name, json_string(value));
    return json_pack("{s:s, s:b, s:b, s:o}", "policy", policy->name, "needs_profile", policy_needs_profile(policy),
                     "online", policy_plan_is_online(policy), "parameters", values);
}

static json_t *tables_json(void)
{
    struct policy_part part;
    struct policy_parameter parameter;
    json_t *out = json_object(), *rows;

    for (int s = 0; s < SECTIONS; s++) {
        rows = json_array();
        for (int i = 0; policy_part_at(sections[s].kind, i, &part); i++)
            json_array_append_new(
                rows, json_pack("{s:s, s:s, s:s}", "name", part.name, "meaning", part.meaning, "source", part.source));
        json_object_set_new(out, sections[s].key, rows);
    }
    rows = json_array();
    for (int i = 0; policy_parameter_at(i, &parameter); i++)
        json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:s, s:s}", "name", parameter.name, "default",
                                              parameter.standard, "values", parameter.values, "read_by",
                                              parameter.used_by, "meaning", parameter.meaning));
    json_object_set_new(out, "parameters", rows);
    return out;
}

static int run_policies(const struct command *command, const struct settings *settings, char **rest)
{
    struct policy policy;
    struct kvf_err err;
    int code = KVF_OK;

    if (rest[0] != NULL && rest[1] != NULL) return command_misuse(command, "expected one policy at most");
    if (rest[0] != NULL) code = policy_parse(rest[0], &policy, &err);
    if (code != KVF_OK) return command_fail(command, code, &err);
    if (settings->json) {
        code = view_json(rest[0] != NULL ? policy_json(&policy) : tables_json(), stdout, &err);
        return code == KVF_OK ? EXIT_DONE : command_fail(command, code, &err);
    }
    if (rest[0] != NULL) {
        policy_print(&policy);
        return EXIT_DONE;
    }
    printf("A policy is a preset, or SCORER[+PLAN][+ROUTER]; either takes :key=value,key=value\n\n");
    for (int s = 0; s < SECTIONS; s++) part_table(s);
    parameter_table();
    return EXIT_DONE;
}

const struct command command_policies = {
    .name = "policies",
    .arguments = "[POLICY]",
    .summary = "list what policies are made of, or the parameters of one",
    .text = NULL,
    .example = "kvfleet policies rkv+wave+reasonalloc:mu=0.1",
    .items = policies_items,
    .fleet = false,
    .run = run_policies,
};
