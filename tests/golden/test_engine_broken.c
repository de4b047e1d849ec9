/* Every broken folder of $KVF_GOLDEN/make_broken.py is refused with a line that names the fault.
 *
 * The makers' base folder is a qwen3 model, whose architecture would be refused before the fault is seen. So the maker
 * runs on a copy in which that folder says LlamaForCausalLM: the tensors are the same but for the norms of queries and
 * keys, which a Llama leaves unread. GGUF cases are of another format. */
#include <ftw.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/golden/engine_cases.h"

static char scratch[] = "/tmp/kvfleet-broken-XXXXXX";

/* What the line must hold, by name of the case; a case that is not here fails the test. */
static const struct {
    const char *name, *words[3];
} expected[] = {
    {"st-zero-bytes", {"model.safetensors", "empty"}},
    {"st-four-bytes", {"model.safetensors", "4 bytes", "header length"}},
    {"st-header-length-2-63", {"model.safetensors", "9223372036854775808", "exceeds the file"}},
    {"st-header-length-past-end", {"model.safetensors", "header length", "exceeds the file"}},
    {"st-header-cut", {"model.safetensors", "header", "exceeds the file"}},
    {"st-header-not-json", {"model.safetensors", "not JSON", "byte"}},
    {"st-header-deep", {"model.safetensors", "header", "nested too deeply"}},
    {"st-overlap", {"model.safetensors", "model.norm.weight", "overlap"}},
    {"st-offset-past-end", {"model.norm.weight", "past the end of the file"}},
    {"st-offset-reversed", {"model.norm.weight", "after it ends"}},
    {"st-offset-negative", {"model.norm.weight", "negative offset", "-128"}},
    {"st-size-mismatch", {"model.norm.weight", "256", "128"}},
    {"st-dtype-unknown", {"model.norm.weight", "dtype", "Q7"}},
    {"st-dtype-integer", {"model.norm.weight", "dtype", "I16"}},
    {"st-shape-overflow", {"model.norm.weight", "overflows"}},
    {"st-shape-wraps-to-fit", {"model.norm.weight", "overflows"}},
    {"st-shape-negative", {"model.norm.weight", "negative dimension", "-64"}},
    {"st-tensor-missing", {"model.layers.1.mlp.up_proj.weight", "missing"}},
    {"st-tensor-transposed", {"model.layers.1.mlp.up_proj.weight", "[64, 96]", "[96, 64]"}},
    {"st-duplicate-key", {"model.norm.weight", "twice"}},
    {"st-data-cut", {"model.safetensors", "past the end of the file"}},
    {"st-missing", {"no weights", "model.safetensors", "index"}},
    {"st-is-directory", {"model.safetensors", "directory"}},
    {"st-is-fifo", {"model.safetensors", "regular file", "FIFO"}},
    {"index-outside", {"index", "../../etc/passwd", "leaves the folder"}},
    {"index-absolute", {"index", "/etc/passwd", "leaves the folder"}},
    {"index-shard-missing", {"model-00002-of-00002.safetensors", "No such file"}},
    {"index-wrong-shard", {"model.norm.weight", "model-00001-of-00002.safetensors", "not in"}},
    {"index-not-strings", {"model.norm.weight", "file name", "integer"}},
    {"config-missing", {"config.json", "No such file"}},
    {"config-empty", {"config.json", "empty"}},
    {"config-array", {"config.json", "object", "array"}},
    {"config-deep", {"config.json", "nested too deeply"}},
    {"config-no-hidden-size", {"config.json", "hidden_size", "missing"}},
    {"config-hidden-zero", {"config.json", "hidden_size", "got 0"}},
    {"config-heads-not-divisible", {"config.json", "4 heads", "3 key-value heads"}},
    {"config-heads-negative", {"config.json", "num_attention_heads", "-4"}},
    {"config-eps-nan", {"config.json", "not JSON", "NaN"}},
    {"config-rope-theta-zero", {"config.json", "rope_theta", "got 0"}},
    {"config-rope-unknown", {"config.json", "rope type", "spiral"}},
    {"config-llama3-no-factor", {"config.json", "rope_scaling", "low_freq_factor"}},
    {"config-vocab-too-large", {"vocab_size", "500", "384"}},
    {"config-architecture", {"config.json", "GPT2LMHeadModel", "LlamaForCausalLM"}},
    {"config-intermediate-huge", {"intermediate_size", "2147483647", "mlp"}},
    {"tok-missing", {"tokenizer.json", "No such file"}},
    {"tok-cut", {"tokenizer.json", "ends too early"}},
    {"tok-not-utf8", {"tokenizer.json", "not UTF-8"}},
    {"tok-merge-unknown", {"tokenizer.json", "zz", "qq"}},
    {"tok-merge-one-part", {"tokenizer.json", "merge", "two parts"}},
    {"tok-duplicate-id", {"tokenizer.json", "two tokens", "id 5"}},
    {"tok-id-huge", {"tokenizer.json", "4000000000", "vocab_size"}},
    {"tok-not-bpe", {"tokenizer.json", "WordPiece", "not supported"}},
    {"tok-pretokenizer-unknown", {"tokenizer.json", "Mystery", "not supported"}},
    {"tok-bad-regex", {"tokenizer.json", "Split", "does not compile"}},
};
#define EXPECTED_COUNT (sizeof expected / sizeof *expected)

/* Runs one program without a shell; its exit status. */
static int command_run(char *const argv[])
{
    pid_t child = fork();
    if (child == 0) {
        execvp(argv[0], argv);
        _exit(127);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Lays out the maker and its models in the scratch folder, qwen3 as a Llama, and runs it. */
static const char make_cases[] =
    "import json, os, shutil, subprocess, sys\n"
    "golden, out = sys.argv[1:]\n"
    "shutil.copyfile(golden + '/make_broken.py', out + '/make_broken.py')\n"
    "os.symlink(golden + '/gguf', out + '/gguf')\n"
    "for name in ('qwen3', 'llama3-rope'):\n"
    "    os.makedirs(out + '/models/' + name)\n"
    "    for file in os.listdir(golden + '/models/' + name):\n"
    "        shutil.copyfile(golden + '/models/' + name + '/' + file, out + '/models/' + name + '/' + file)\n"
    "path = out + '/models/qwen3/config.json'\n"
    "config = json.load(open(path)) | dict(architectures=['LlamaForCausalLM'], model_type='llama')\n"
    "json.dump(config, open(path, 'w'))\n"
    "subprocess.run([sys.executable, out + '/make_broken.py', out + '/out'], check=True, stdout=subprocess.DEVNULL)\n";

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st;
    (void)flag;
    (void)at;
    return remove(path);
}

/* Opens the folder as the engine does; the code of the first call that fails. */
static int folder_open(const char *path, struct kvf_err *err)
{
    struct model *model = NULL;
    struct tokenizer *tokenizer = NULL;
    int rc = model_open(path, &model, err);
    if (rc == KVF_OK) rc = tokenizer_open(path, model->config.vocab, &tokenizer, err);
    ck_assert_msg(rc == KVF_OK || tokenizer == NULL, "%s: a tokenizer came with an error", path);
    tokenizer_close(&tokenizer);
    model_close(&model);
    return rc;
}

START_TEST(the_bases_are_sound)
{
    static const char *const names[] = {"qwen3", "llama3-rope"};
    char path[CASES_PATH];
    struct kvf_err err = {""};
    snprintf(path, sizeof path, "%s/models/%s", scratch, names[_i]);
    ck_assert_msg(folder_open(path, &err) == KVF_OK, "%s", err.text);
}
END_TEST

START_TEST(each_is_refused_by_name)
{
    char path[CASES_PATH];
    json_error_t at;
    snprintf(path, sizeof path, "%s/out/cases.jsonl", scratch);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    int seen = 0;
    for (json_t *row; (row = json_loadf(file, JSON_DISABLE_EOF_CHECK, &at)) != NULL; json_decref(row)) {
        const char *name = cases_text(row, "name");
        if (strncmp(name, "gguf-", 5) == 0) continue;
        size_t i = 0;
        while (i < EXPECTED_COUNT && strcmp(expected[i].name, name) != 0) i++;
        ck_assert_msg(i < EXPECTED_COUNT, "no expectation for case %s: %s", name, cases_text(row, "what"));
        struct kvf_err err = {""};
        snprintf(path, sizeof path, "%s/out/%s", scratch, cases_text(row, "path"));
        int rc = folder_open(path, &err);
        ck_assert_msg(rc < 0, "%s: opened, although %s", name, cases_text(row, "what"));
        for (int k = 0; k < 3 && expected[i].words[k] != NULL; k++)
            ck_assert_msg(strstr(err.text, expected[i].words[k]) != NULL, "%s: \"%s\" is not in: %s", name,
                          expected[i].words[k], err.text);
        ck_assert_msg(strchr(err.text, '\n') == NULL, "%s: more than one line: %s", name, err.text);
        seen++;
    }
    fclose(file);
    ck_assert_uint_eq(seen, EXPECTED_COUNT);
}
END_TEST

int main(void)
{
    const char *golden = cases_require("KVF_GOLDEN");
    if (command_run((char *[]){"python3", "-c", "", NULL}) != 0) {
        puts("skip: python3 is not there");
        return CASES_SKIP;
    }
    if (mkdtemp(scratch) == NULL ||
        command_run((char *[]){"python3", "-c", (char *)make_cases, (char *)golden, scratch, NULL}) != 0) {
        puts("the broken folders could not be made");
        nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        return EXIT_FAILURE;
    }
    TCase *tcase = tcase_create("broken");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, the_bases_are_sound, 0, 2);
    tcase_add_test(tcase, each_is_refused_by_name);
    Suite *suite = suite_create("broken folders");
    suite_add_tcase(suite, tcase);
    int status = cases_run(suite);
    nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return status;
}
