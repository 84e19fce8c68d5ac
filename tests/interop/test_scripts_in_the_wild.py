"""What launch files of public repositories do: branches, loops, files that read one another."""

import random
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.interop.dialects.settings import Place, Setting, Settings
from simulator.interop.launch_files.advising import advise, changed_text, rewritten
from simulator.interop.launch_files.imported import Imported
from simulator.interop.launch_files.merging import import_launch
from simulator.interop.shell.shell_words import read_script
from simulator.scenario import load_scenario
from simulator.workload import presets

LLAMA_8B = (
    "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336"
    " --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu"
    " --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear"
    " --position-embedding-type rope --vocab-size 128256 --seq-length 8192 --bf16"
    " --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 128"
)
RUN = "torchrun --nproc_per_node 8 --nnodes "


def read(folder: Path, files: dict[str, str], *overrides: str, **names: Any) -> Imported:
    for name, text in files.items():
        (folder / name).write_text(text)
    given = {"cluster": "dgx-h100", **names}
    return import_launch([folder / name for name in files], given, overrides)


def commands(text: str) -> list[list[str]]:
    return [[word.text for word in words] for words in read_script(text, "s.sh").commands]


WORDS = r"""
A=(one "two words" three); A+=(four); show ${A[1]} "${A[1]}" ${A[@]} "${A[@]}" $A
A=(one "two words"); show "x${A[@]}y" x${A[0]}y "${A[*]}" "(${A[*]})"
A=(
  -a 1  # said
  -b 2 \
  3); show "${A[@]}"
A=(one two); A+=three; show "${A[@]}" $A
B=one; B+=two; show $B ${B}three "$B three" '$B' \$B
B="two words"; show $B "$B"; C=$B; show "$C" $C
B=; show ${B-unset} ${B:-empty} ${B+set} ${B:+full} end
show ${C1-unset} ${C1:-empty} ${C1+set} ${C1:+full} end
B=v; show ${B-unset} ${B:-empty} ${B+set} ${B:+full} end
show ${D:=given} $D; show ${D:=other} $D
T=2_000_000; P=/data/runs/llama.tar.gz; show ${T//_} ${T//_/,} ${T/_} "${T/_/ }" $((${T//_}/2))
show ${P##*/} ${P#*/} ${P%.*} ${P%%.*} ${P/runs/$B} ${P//a/"b c"} "${P//a/b c}" ${P/#\/data/x}
show ${P/%gz/bz2} ${P//\//_} ${P%"*"} ${P#"/data"} ${P%/*}/other ${P//?/x} ${P#nothing} ${P/l*a/L}
show ${P^^} ${P,,} ${B^} ${B,} ${P:1} ${P:1:4} ${P: -2} ${P:0:-3} ${T:$((1+1)):3} ${P:99}end
A=(ab cb); show ${A%b} ${A//b/x} end; Q=; show ${Q//a/b} ${Q%x} "${Q^^}" ${Q:0:1} end
show ${E=given} $E; E=; show ${E=other} "$E"
show ${F:-$B} "${F:-"$B w"}" ${F:-a b}
show ${F:-"a b"} ${F:-'a b'} "${F:-'a b'}" "${F:-"a b"}" ${F:-a "b c"d e} x${F:-a b}y ${F:-""}
show ${G:="a b"} $G "$G" ${B:+"a b"} ${B:+a b} "${B:+"a b"}"; H=${F:-"a b"}; show "$H" ${H:+"$H"}
A=(1 2); A[4]=x; show "${A[@]}" ${#A[@]} "${A[3]}" "${A[-1]}" ${A[7]} end
show "${A[7]:-d}" ${A[2]-u} ${A[1]-u} "${A[3]:-"a b"}" ${A[9]+set} ${A[1]+set} "(${A[*]})" ${#A[4]}
A=([2]=x y [1]=z); show "${A[@]}" $A "(${A[*]})" ${A[2]} ${A[3]}; A[1]+=w; A+=(v); show "${A[@]}"
I=2; show ${A[I]} ${A[$I]} ${A[I+1]} ${A[$((I-1))]} "${A[I*9]}" end; A[I-2]=a; show "${A[@]}"
S=s; show ${S[0]} ${S[1]} "${S[1]}" ${S[@]} ${#S} ${#S[@]}; S[2]=t; show "${S[@]}" ${#S[@]}
S=one; S+=(two "3 4"); show "${S[@]}"; A=("a b" c); T=${A[@]}; show "$T"; T=(${A[@]})
show "${T[@]}" ${F:-} end
W=" x  y "; show a$W"b"$W ${W}c "${W}" $W ${F:- x}y z${F:-x }y ${F:-a "" b} z${F:- }y
show {a,b} x{1..3}y {01..03} {3..1} {a..c} {C..A} {1..7..3} {7..1..2} {a} {} {a,{b,c}d} {,x} end
show "{a,b}" '{a,b}' {a,"b c"} a{b c} \{a,b} {a\,b,c} ${B}{1,2} {$B,2} {a,b}{c,d} x{,y}
show {1..2},{3..4} {a..e..2} {10..8} {-2..1} {1.. 3}
show --x={1,2} a{1..b}c {a,b "{a,b}"{c,d} {x,y}=3 {1..3}{,z}
show {a,b}" "c {"a,b",c} {00..2} {-01..1} {2..-01} {a,b}\ c {a{b,c}}d }{a,b} {a,b}} {{a,b}
show ${A[0]}{1,2}
C={a,b}; show $C "$C"; D=({1..3} z{p,q} "{r,s}"); show "${D[@]}"; show {${B},$S}{,"$B  w"}
N=4; show $((N * 8)) $((N*8/3)) $((N%3)) $((2+N-1)) $(( (N+2)*2 )) $((${N}+1)) $(($N/3*3))
N=8; show $((N/2)) $(((1-N)/2)) $(((1-N)%4)) $((N%4)) $(((1-N)/(0-2)))
show a\ b "a\"b" "a\$N" 'a"b' "it's" a'b c'd"e f"
show a#b c # d
show one; show two && show three || true
show a \
  b\
c
show "a \
b" ""  '' x"" "a
b" 'c
d'
show $B$N ${B}_${N} $B-$N "$B/$N"
export P=5 Q="6 7"; show $P "$Q" $Q
B=1; [ $B = 1 ] && B=2; show $B; [[ $B == 1 ]] && B=3; show $B; test $B = 1 || B=4; show $B
[ $B = 4 ] && B=5 || B=6; show $B; [ $B = 4 ] && B=7 || B=8; show $B; [ $B = 8 ] || show never
! [ $B = 8 ] && B=9; show $B; [ -n "$B" ] && [ $B -gt 9 ] && B=10; show $B; [ $B = 8 ] && show $B
if [ $B = 8 ]; then [ $B = 7 ] && B=11; show $B; fi; [ $B = 7 ] && { B=12; }; show $B
[ $B = 7 ] && B=13; B=14; show $B; true && B=15; show $B; false || B=16; show $B; B=v
declare -A M=([8b]=32 ["70b"]="80 x"); M[405b]=126; K=70b; show ${M[8b]} "${M[$K]}" ${M[405b]} end
called() {
  local more=("$@") x=$1
  show "${more[@]}" $# $1 "$2" ${3:-none} "$@" $x $* "$*" ${@} "${@}" ${#} end
  shift; show "$@" end; shift 1
  show $# end
}
function other
{
  TP=${1:-4}
  show inner $TP; called "$TP" "a b" c
}
show before "$@" end "x$@y" ${1:-none} "$*"
A=(); show "${A[@]}" "$A" end
read -r -d '' X <<'EOF'
  --a 1 \
  --b "2 $Z"
EOF
read -d '' Y <<EOF
 --a $N \
 --b ${U:-3} "q" \"e\" 'x' $((N+1)) \$N \\
EOF
read K L <<EOF
 one two  three
 four
EOF
Z=$(cat <<EOF
  --c $N
  --d
EOF
)
read -ra A <<< "1 2 3"; IFS=, read -r T P <<< "8,4"
read -d: -r Q <<-EOF
	tabs: left out
	EOF
show "$X" "$Y" "$K" "$L" "$Z" "${A[@]}" $T $P "$Q"; show $X $Y $Z
read A K <<< "1,2 3,4"; IFS=,; read Q P <<< "5,6 7"; show "$A" "$K" "$Q" "$P"; IFS=" "
called one "two words"
other
other 8
"""


def of_bash(text: str) -> list[list[str]]:
    """Words that ``show`` is given in a script."""
    said = 'show() { for w in "$@" ended; do printf \'%s\\0\' "$w"; done; }\n' + text
    done = subprocess.run(["bash"], input=said, capture_output=True, text=True, check=True)
    return [each.split("\0")[:-1] for each in done.stdout.split("ended\0")[:-1]]


def shown(text: str) -> list[list[str]]:
    return [[*words[1:]] for words in commands(text) if words[0] == "show"]


def test_words_are_those_that_bash_makes() -> None:
    assert shown(WORDS) == of_bash(WORDS)


DEFAULTS = ("${E:-", "${U:-", "${B:+", "${U-")
SET = "A=(one 'two words' 3); A[5]=six; B=b; N=2; E=; L=(1 2 4 8)\n"
PIECES = (
    *("a", "x=", "--n ", " ", "'s t'", '"d q"', "\\ ", "1", ",", "..", "${B}", '"$B"', "${A}"),
    *("${A[@]}", '"${A[@]}"', '"${A[*]}"', "${A[1]}", '"${A[1]}"', "${A[N]}", "${A[4]}"),
    *("${A[-1]}", "${#A[@]}", "${#B}", "${L[$((N-1))]}", "$((N*3))", *DEFAULTS),
    *("}", '${U:-"a b"}', "${E:-a b}", "\"${E:-'q'}\"", "{a,b}", "{1..3}", "{", "{x,"),
    *(",y}", "{c..a}", "${U:=d}", '"${A[7]:-"e f"}"'),
)
"""Of words of the shell."""


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.evidence)])
def test_drawn_words_are_those_that_bash_makes(count: int) -> None:
    """Each line is evaluated on its own, since some are no words at all.

    Not drawn: braces in a default, which bash pairs in one way for them and in another for it.
    """
    chance = random.Random(1)
    drawn = [chance.choices(PIECES, k=chance.randint(1, 6)) for _ in range(count)]
    lines = [
        "".join(pieces)
        for pieces in drawn
        if not (set(pieces) & {*DEFAULTS} and any(piece[0] in "{" for piece in pieces))
    ]
    each = "eval {} 2>/dev/null || show no words\n"
    script = "".join(f"unset U\n{each.format(shlex.quote(f'show {line}'))}" for line in lines)
    theirs = of_bash(SET + script)
    sound = [(x, words) for x, words in zip(lines, theirs, strict=True) if words != ["no", "words"]]
    assert len(sound) > count / 2
    for line, words in sound:
        assert (line, shown(f"{SET}show {line}\n")) == (line, [words])


@pytest.mark.parametrize(
    ("condition", "run"),
    [
        ("[ $SIZE = 8B ]", ["big"]),
        ("[[ $SIZE == 1B ]]", ["other"]),
        ("! [ $SIZE = 8B ]", ["other"]),
        ('[ -z "$SIZE" ]', ["other"]),
        ("test $N -gt 4", ["big"]),
        ("[ $N -gt 8 ]", ["other"]),
        ("[ -d logs ]", ["big", "other"]),
        ("[ $UNSET = 8B ]", ["big", "other"]),
        ("[ $SIZE = 8B ] && [ $N = 8 ]", ["big", "other"]),
    ],
)
def test_a_branch_that_variables_rule_out_is_not_read(condition: str, run: list[str]) -> None:
    text = f"SIZE=8B; N=8\nif {condition}; then\n  K=big; big\nelse\n  K=other; other\nfi\nend $K\n"
    script = read_script(text, "s.sh")
    assert commands(text) == [*([name] for name in run), ["end", run[-1]]]
    assert script.branches is (len(run) == 2)


def test_branches_within_branches_and_cases() -> None:
    text = """\
case $KIND in
  fp8|mxfp8) P=8 ;;
  bf*) P=16
     if [ $P = 32 ]; then never; elif [ $P = 16 ]; then once; else never; fi ;;
  *) P=32 ;;
esac
end $P
"""
    assert commands(f"KIND=bf16\n{text}") == [["once"], ["end", "16"]]
    assert commands(f"KIND=mxfp8\n{text}") == [["end", "8"]]
    assert commands(f"KIND=fp32\n{text}") == [["end", "32"]]
    assert read_script(text, "s.sh").branches  # nobody knows: all are read


@pytest.mark.parametrize("word", ["read", "read -r"])
def test_read_sets_every_name_that_is_no_flag(word: str) -> None:
    assert commands(f"IFS=',' {word} A B C <<< '8,4,2'\nend $A $B $C\n") == [["end", "8", "4", "2"]]


def test_a_loop_is_read_with_its_first_value(tmp_path: Path) -> None:
    text = (
        'SIZES=("2,4" "4,2")\nfor S in "${SIZES[@]}"; do\nIFS=\',\' read -r TP PP <<< "$S"\n'
        f"{RUN}8 {LLAMA_8B} --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP\n"
        "done\n"
    )
    found = read(tmp_path, {"sweep.sh": text})
    assert (found.scenario.pinned["tp"], found.scenario.pinned["pp"]) == (2, 4)
    assert any("of the values of 'S' the first was read" in note for note in found.notes)


@pytest.mark.parametrize(
    "text",
    [
        'cmd="CUDA_VISIBLE_DEVICES=6,7 {run} 2>&1 | tee train.log"\necho $cmd\neval $cmd\n',
        "opts='{options}'\ncmd='{start} $opts > log'\neval $cmd\n",
        'opts="{options}"\ncmd="{start} \\$opts"\neval "$cmd"\n',
        "cmd='{start} \\\n {options}'\neval \"$cmd\"\n",
        'run_cmd="{start}\n {options}"\n\necho ${{run_cmd}}\neval ${{run_cmd}}\nset +x\n',
        'ARGS="{options}"\ncmd=({start} "$ARGS")\neval "${{cmd[@]}}"\n',
        "inner='{run}'\ncmd='eval $inner'\neval $cmd\n",
    ],
    ids=["redirected", "single", "escaped", "continued", "pai", "array", "twice"],
)
def test_a_command_that_is_evaluated_is_read_as_the_shell_would(text: str, tmp_path: Path) -> None:
    """Scripts put a command into a variable, print it, and evaluate it (Pai-Megatron-Patch)."""
    program, _, options = LLAMA_8B.partition(" ")
    start = f"{RUN}4 {program}"
    whole = text.format(run=f"{start} {options}", start=start, options=options)
    found = read(tmp_path, {"run.sh": whole})
    assert not found.unknown
    assert found.scenario.cluster.gpus == 32
    assert found.scenario.pinned["micro_batch"] == 1
    assert found.scenario.workload.architecture.name == "llama-3-8b"


WITH_FUNCTIONS = f"""\
#!/bin/bash
TP=2
while [ $# -gt 0 ]; do
  case $1 in
    --tp) TP=$2; shift 2 ;;
  esac
done
run() {{
  local more=("$@")
  {RUN}4 {LLAMA_8B} \\
    --tensor-model-parallel-size $TP "${{more[@]}}"
}}
run --sequence-parallel
"""


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_functions_are_read_with_what_they_are_called_with(ends: str, tmp_path: Path) -> None:
    """And what a script's own arguments might set does not take the place of what it sets."""
    path = tmp_path / "run.sh"
    path.write_bytes(WITH_FUNCTIONS.replace("\n", ends).encode())
    found = import_launch([path], {"cluster": "dgx-h100"})
    pinned = {"tp": 2, "micro_batch": 1, "sequence_parallel": True, "sharding": "zero1"}
    assert (found.scenario.pinned, found.scenario.cluster.gpus) == (pinned, 32)
    assert not found.unknown


def test_arguments_of_a_script_are_no_value_of_the_option_before_them(tmp_path: Path) -> None:
    for more in ('"$@"', "$*", "${@}"):
        found = read(tmp_path, {"run.sh": f"{RUN}4 {LLAMA_8B} --sequence-parallel {more}\n"})
        assert not found.notes
        assert found.scenario.pinned["sharding"] == "zero1"


def test_functions_that_nothing_calls_are_read_and_those_that_call_themselves_end() -> None:
    assert commands("f() {\n a $1\n}\ng() {\n b\n}\ng\n") == [["b"], ["a", "$1"]]
    with pytest.raises(InputError, match="more than 10000 words"):
        commands("f() {\n" + " f a\n" * 9 + "}\nf\n")


@pytest.mark.parametrize("start", ["cat > job.sh <<EOF\n#!/bin/bash", "sbatch <<EOF\n#!/bin/bash"])
def test_a_script_that_a_script_writes_is_read(start: str, tmp_path: Path) -> None:
    inner = f"TP=4\n{RUN}${{N}} {LLAMA_8B} --tensor-model-parallel-size \\$TP\n"
    found = read(tmp_path, {"run.sh": f"export N=${{N:-2}}\n{start}\n{inner}EOF\nsbatch job.sh\n"})
    assert (found.scenario.cluster.gpus, found.scenario.pinned["tp"]) == (16, 4)


def test_what_evaluates_itself_comes_to_an_end() -> None:
    assert commands("a='eval $a'\neval $a\nend\n")[-1] == ["end"]
    with pytest.raises(InputError, match="more than 10000 words"):
        commands("a='" + "x " * 9000 + "'\n" + "eval echo $a\n" * 3)


def test_a_file_that_a_script_reads_is_read_where_it_stands(tmp_path: Path) -> None:
    files = {
        "common.sh": "export MBS=1\nexport FP8=True\nexport FP8_RECIPE=tensorwise\nexport SP=1\n",
        "small.sh": "export MODEL_SIZE=8b\n",
        "config.sh": "export TP=2\nsource $(dirname $0)/common.sh\n. ./small.sh\nexport MBS=2\n"
        "export MINIBS=4\nexport DGXNNODES=2\nexport DGXNGPU=8\nexport MAX_STEPS=100\n",
    }
    found = read(tmp_path, files, "training.sequence_length=8192")
    scenario = found.scenario
    assert scenario.pinned == {"tp": 2, "micro_batch": 2, "sequence_parallel": True}
    recipe = scenario.workload.recipe
    assert recipe.precision == "fp8_current"
    assert recipe.global_batch == 4 * (2 * 8 // 2)
    assert recipe.tokens == 100 * recipe.global_batch * 8192  # with the length of the option
    assert scenario.workload.architecture.name == "llama-3.1-8b"
    sources = {item.field: item.source for item in found.origins}
    assert sources["training.precision"] == "common.sh: line 2: FP8"
    assert not any("give it with --from" in note for note in found.notes)
    with pytest.raises(InputError, match=r"common\.sh: not recognised"):
        read(tmp_path, {"common.sh": files["common.sh"]})  # alone it says nothing


def test_files_that_read_one_another_come_to_an_end(tmp_path: Path) -> None:
    files = {
        "a.sh": f"source b.sh\nsource a.sh\n{RUN}1 {LLAMA_8B}\n",
        "b.sh": "source a.sh\nsource b.sh\nX=1\n",
    }
    assert read(tmp_path, files).scenario.cluster.gpus == 8


def test_four_bit_stand_above_eight(tmp_path: Path) -> None:
    text = (
        "export MINIBS=4\nexport DGXNNODES=2\nexport DGXNGPU=4\nexport FP8=True\nexport FP4=True\n"
    )
    found = read(
        tmp_path,
        {"c.sh": text},
        "training.sequence_length=8192",
        model="llama-3.1-8b",
        cluster="gb200-nvl72",
    )
    assert found.scenario.workload.recipe.precision == "nvfp4"


@pytest.mark.parametrize("name", ["FP8_ACT", "FP8_ACTIVATION"])
def test_mlperf_keeps_the_input_of_swiglu_in_8_bit(tmp_path: Path, name: str) -> None:
    """NVIDIA's name and AMD's, both for activation_func_fp8_input_store; 0 is off."""
    for on in (0, 1):
        text = f"export MINIBS=1\nexport DGXNNODES=1\nexport DGXNGPU=8\nexport {name}={on}\n"
        names = {"model": "llama-2-70b", "cluster": "dgx-b200"}
        found = read(tmp_path, {"c.sh": text}, "training.sequence_length=8192", **names)
        stash = found.scenario.workload.recipe.stash_bytes
        assert (stash.activation_input if stash else None) == (1.0 if on else None)


def test_mlperf_fine_tunes_llama_70b_with_adapters(tmp_path: Path) -> None:
    """Dell's XE9680L of round 5.0; rank, matrices and length stand in every train.py alone."""
    common = (
        "export LORA_A2A=1\nexport FP8=True\nexport FP8_AMAX_HISTORY=4\nexport PP=1\nexport MBS=1\n"
    )
    own = (
        "source $(dirname ${BASH_SOURCE[0]})/config_common.sh\nexport MAX_STEPS=800\n"
        "export MINIBS=1\nexport TP=1\nexport CP=1\nexport SP=0\nexport FP8_ACT=1\n"
        "export DGXNNODES=1\nexport DGXNGPU=8\n"
    )
    files = {"config_XE9680L_B200.sh": own, "config_common.sh": common}
    found = read(tmp_path, files, cluster="dgx-b200")
    recipe = found.scenario.workload.recipe
    assert found.scenario.workload.architecture.name == "llama-2-70b"
    assert (recipe.lora_rank, tuple(recipe.lora_targets)) == (16, ("q", "k", "v", "o"))
    assert (recipe.sequence_length, recipe.global_batch) == (8192, 8)
    assert recipe.precision == "fp8" and recipe.fp8_weights  # fp8_params: ${oc.env:FP8}
    assert not found.unknown
    assert found.predicted().fits  # it was published, so it ran
    longer = {**files, "config_common.sh": f"{common}export MAX_SEQLEN=4096\n"}
    assert (
        read(tmp_path, longer, cluster="dgx-b200").scenario.workload.recipe.sequence_length == 4096
    )


def test_mlperf_on_amd_computes_blocks_again(tmp_path: Path) -> None:
    """AMD's MI300X of round 5.0: its variables name Megatron's granularity, method and layers."""
    text = (
        "export LORA_A2A=1\nexport DGXNGPU=8\nexport DGXNNODES=1\nexport TP=1\nexport PP=1\n"
        "export CP=1\nexport SP=False\nexport MBS=1\nexport MINIBS=1\nexport FP8=True\n"
        "export ACG=full && export ACM=block && export ACL=21\n"
    )
    found = read(tmp_path, {"config_MI300X_1x8x1.sh": text}, cluster="mi300x-8")
    pinned = found.scenario.pinned
    assert (pinned["recompute"], pinned["recompute_layers"]) == ("full", 21)
    assert found.scenario.software.name == "primus"
    offloads = f"{text}export CPU_OFFLOADING=True\nexport CPU_OFFLOADING_NUM_LAYERS=20\n"
    files = {"config_MI300X_1x8x1.sh": offloads}
    assert read(tmp_path, files, cluster="mi300x-8").scenario.pinned["offload_layers"] == 20


def test_a_run_of_sixteen_trillion_tokens_in_samples(tmp_path: Path) -> None:
    found = read(tmp_path, {"t.sh": f"{RUN}1 {LLAMA_8B} --train-samples 1953125000\n"})
    assert found.scenario.workload.recipe.tokens == 1_953_125_000 * 8192
    both = f"{RUN}1 {LLAMA_8B} --train-samples 1953125000 --train-iters 100\n"
    with pytest.raises(InputError, match="--train-samples: stands beside --train-iters"):
        read(tmp_path, {"t.sh": both})


def test_a_switch_of_no_truth_value_is_refused_once(tmp_path: Path) -> None:
    text = f"{RUN}1 {LLAMA_8B.replace('--bf16', '--bf16 maybe')}\n"
    with pytest.raises(InputError, match="must be true or false, got 'maybe'") as error:
        read(tmp_path, {"t.sh": text})
    assert sum("--bf16" in line for line in error.value.problems) == 1


def test_too_few_accelerators_for_one_copy_are_asked_for(tmp_path: Path) -> None:
    text = f"{RUN}1 {LLAMA_8B} --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4\n"
    rule = "must be a multiple of 32, which tp 8 pp 4 take in all .*, got 8 .* --gpus 32 decides"
    with pytest.raises(InputError, match=rule):
        read(tmp_path, {"t.sh": text})
    assert read(tmp_path, {"t.sh": text}, gpus=64).scenario.cluster.gpus == 64


def test_a_variable_of_the_surroundings_is_asked_for_or_set(tmp_path: Path) -> None:
    text = f"{RUN}$NODES {LLAMA_8B} --tensor-model-parallel-size $TP\n"
    with pytest.raises(InputError, match=r"'\$TP' stands in a variable .*--set layout.tp=N says"):
        read(tmp_path, {"t.sh": text}, gpus=16)
    found = read(tmp_path, {"t.sh": text}, "layout.tp=4", gpus=16)
    assert found.scenario.pinned["tp"] == 4


def test_a_place_for_a_number_in_a_job_head_is_none(tmp_path: Path) -> None:
    text = f"#!/bin/bash\n#SBATCH --nodes your_nodes\ntorchrun {LLAMA_8B}\n"
    found = read(tmp_path, {"t.sh": text}, gpus=16)
    assert any("'your_nodes' is a place for a number" in note for note in found.notes)


def test_batches_that_follow_are_not_asked_for(tmp_path: Path) -> None:
    job = (
        '[model]\nname = "llama3"\nflavor = "8B"\n'
        "[training]\nlocal_batch_size = 2\nseq_len = 8192\n"
    )
    with pytest.raises(InputError) as told:
        read(tmp_path, {"job.toml": job})
    assert [text.partition(": not said")[0] for text in told.value.problems] == [
        "--from: cluster.gpus"
    ]
    assert read(tmp_path, {"job.toml": job}, gpus=16).scenario.workload.recipe.global_batch == 32


def test_a_flavor_or_recipe_that_is_no_model_of_the_zoo_is_named(tmp_path: Path) -> None:
    job = '[model]\nname = "deepseek_v3"\nflavor = "16B"\n[training]\nseq_len = 4096\n'
    with pytest.raises(InputError, match=r"'deepseek_v3 16B', .* is no model of the zoo"):
        read(tmp_path, {"job.toml": job}, gpus=8)
    for words, said in (
        ("--hybrid-layer-pattern MGM*", r"layers of kinds that are not read \(G\)"),
        ("--hybrid-layer-pattern M*M*/MM/MM", r"layers of kinds that are not read \(/\)"),
        ("--hybrid-attention-ratio 0.08", "layers of several kinds, dealt by shares"),
        ("--num-experts 512 --moe-latent-size 1024", "experts in a latent width"),
    ):
        with pytest.raises(InputError, match=said):
            read(tmp_path, {"t.sh": f"{RUN}1 {LLAMA_8B} {words}\n"})


NEMOTRON = (
    f"{RUN}1 pretrain_hybrid.py --bf16 --disable-bias-linear --untie-embeddings-and-output-weights"
    " --normalization RMSNorm --squared-relu --group-query-attention --position-embedding-type none"
    " --seq-length 8192 --micro-batch-size 1 --global-batch-size 64 --vocab-size 131072"
    " --attention-dropout 0 --hidden-dropout 0 --use-distributed-optimizer "
)
"""Of examples/post_training/modelopt/conf/nvidia of Megatron-LM, as the next three."""
H_8B = (
    "--hidden-size 4096 --ffn-hidden-size 21504 --num-attention-heads 32 --num-query-groups 8"
    " --mamba-head-dim 64 --mamba-num-heads 128 --mamba-num-groups 8 --mamba-state-dim 128"
    " --hybrid-layer-pattern M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
)
NANO_30B = (
    "--num-experts 128 --moe-router-topk 6 --moe-shared-expert-intermediate-size 3712"
    " --mamba-num-heads 64 --mamba-head-dim 64 --hidden-size 2688 --num-attention-heads 32"
    " --num-query-groups 2 --ffn-hidden-size 1856 --kv-channels 128"
    " --hybrid-override-pattern MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
)


def test_layers_of_one_module_each(tmp_path: Path) -> None:
    """Nemotron-H 8B is the zoo's; of Nemotron 3 Nano its authors give 31.6B parameters."""
    found = read(tmp_path, {"h.sh": NEMOTRON + H_8B})
    assert found.scenario.workload.architecture == presets.load("nemotron-h-8b")
    assert not found.unknown
    nano = read(tmp_path, {"n.sh": NEMOTRON + NANO_30B}, gpus=64)
    architecture = nano.scenario.workload.architecture
    assert (architecture.layers, architecture.is_moe) == (52, True)
    assert architecture.parameters / 1e9 == pytest.approx(31.6, abs=0.05)
    assert nano.predicted().step_time_s > 0


def test_bars_of_a_pattern_part_the_pipeline(tmp_path: Path) -> None:
    """tests/functional_tests/test_cases/hybrid/..._pp2_vpp2_... of Megatron-LM, a YAML of flags."""
    text = (
        "MODEL_ARGS:\n  --hidden-size: 1024\n  --num-attention-heads: 16\n"
        "  --group-query-attention: true\n  --num-query-groups: 8\n"
        "  --hybrid-layer-pattern: M-M-M-M*-M-|M-M-M*-M-M-|M-M*-M-M-M-|M*-M-M-M-M-\n"
        "  --micro-batch-size: 4\n  --global-batch-size: 32\n  --seq-length: 1024\n"
        "  --max-position-embeddings: 1024\n  --pipeline-model-parallel-size: 2\n"
        "  --use-distributed-optimizer: true\n  --overlap-grad-reduce: true\n  --bf16: true\n"
    )
    with pytest.raises(InputError, match=r"or --set model\.vocab_size=N, the tokens of its"):
        read(tmp_path, {"m.yaml": text}, gpus=8)
    with pytest.raises(InputError, match=r"--set: model\.vocab_size: must be a whole number"):
        read(tmp_path, {"m.yaml": text}, "model.vocab_size=many", gpus=8)
    found = read(tmp_path, {"m.yaml": text}, "model.vocab_size=50257", gpus=8)
    assert found.scenario.workload.architecture.vocabulary == 50257
    assert found.scenario.pinned["vpp"] == 2
    assert list(found.scenario.pinned["stages"]) == [11, 11, 11, 11]
    assert found.scenario.software.name == "megatron-core"
    cut = text.replace("M-M-M-M*-M-|M", "M-M-M-M*-M-M")
    with pytest.raises(InputError, match="must part layers into pieces that pp 2 divides, got 3"):
        read(tmp_path, {"m.yaml": cut}, "model.vocab_size=50257", gpus=8)


def test_what_megatron_leaves_to_other_flags(tmp_path: Path) -> None:
    """Megatron-LM: arguments.py turns sequence parallelism off at tp 1, whatever is asked, and a
    model without experts has no use for their tp. get_gpt_layer_local_spec has unfused attention,
    experts are one by one without --moe-grouped-gemm, and moe_utils.unpermute adds up by
    scatter_add without --moe-permute-fusion, by index_add in deterministic mode.
    """
    run = f"{RUN}16 {LLAMA_8B} --sequence-parallel --expert-tensor-parallel-size 4"
    dense = read(tmp_path, {"t.sh": f"{run} --transformer-impl local\n"})
    assert not dense.scenario.pinned["sequence_parallel"] and dense.predicted().step_time_s > 0
    assert any("the model has no experts" in note for note in dense.notes)
    software = dense.scenario.software
    assert (software.kernels.attention, software.allocator.local_blocks) == ("unfused", True)
    routed = f"{RUN}16 {LLAMA_8B} --num-experts 8 --moe-router-topk 2"
    one_by_one = read(tmp_path, {"t.sh": f"{routed} --deterministic-mode\n"}).scenario.software
    assert not one_by_one.allocator.grouped_products
    assert one_by_one.kernels.keeps_expert_outputs
    plain = read(tmp_path, {"t.sh": f"{routed} --moe-grouped-gemm\n"}).scenario.software
    assert (plain.kernels.permutation, plain.kernels.keeps_expert_outputs) == ("torch", False)
    grouped = read(tmp_path, {"t.sh": f"{routed} --moe-grouped-gemm --moe-permute-fusion\n"})
    assert grouped.scenario.software.allocator.grouped_products
    assert not grouped.scenario.software.kernels.keeps_expert_outputs
    assert grouped.scenario.software.kernels.permutation == "fused"


def test_a_batch_that_grows_is_that_of_its_end(tmp_path: Path) -> None:
    """test_cases/gpt/gpt3_15b_8t_release of Megatron-LM, and the ramp of GPT-3."""
    without = LLAMA_8B.replace(" --global-batch-size 128", "")
    steps = ' --step-batch-size-schedule "0:384 200B:768 400B:1152"'
    found = read(tmp_path, {"t.sh": RUN + "16 " + without + steps})
    assert found.scenario.workload.recipe.global_batch == 1152
    assert any("last batch, 1152; it has 384, 768 before" in note for note in found.notes)
    assert not found.unknown
    for wrong in ("384", "5B:384", "0:0", "0:384 200X:768"):
        with pytest.raises(InputError, match="must give sequences by tokens"):
            read(tmp_path, {"t.sh": f'{RUN}16 {without} --step-batch-size-schedule "{wrong}"'})
    ramp = f"{RUN}16 {LLAMA_8B} --rampup-batch-size 32 32 5859375\n"
    found = read(tmp_path, {"t.sh": ramp})
    assert found.scenario.workload.recipe.global_batch == 128 and not found.unknown
    assert any("the ramp before it is not counted" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "pinned", "software"),
    [
        ("--zero-stage=1", {"sharding": "zero1"}, "megatron-deepspeed-2023"),
        ("--zero-stage 0", {"sharding": "ddp"}, "megatron-deepspeed-2023"),
        ("--zero-stage 3 --cpu-optimizer", {"sharding": "zero3", "optimizer_offload": "cpu"},
         "deepspeed"),
        ("--zero-stage 1 --checkpoint-activations --deepspeed-activation-checkpointing",
         {"sharding": "zero1", "recompute": "full"}, "megatron-deepspeed-2023"),
        ("--zero-stage 1 --ds-sequence-parallel-size 4",
         {"sharding": "zero1", "cp": 4, "cp_kind": "all_to_all"}, "deepspeed"),
    ],
    ids=["one", "none", "three", "recomputed", "ulysses"],
)  # fmt: skip
def test_megatron_with_deepspeed(
    words: str, pinned: dict[str, Any], software: str, tmp_path: Path
) -> None:
    """As examples_deepspeed of deepspeedai/Megatron-DeepSpeed; their JSON says the same stage."""
    text = (
        f"deepspeed --num_nodes 4 --num_gpus 8 {LLAMA_8B} --no-pipeline-parallel --data-impl mmap"
        f" --train-tokens 300000000000 --deepspeed --deepspeed_config=ds.json {words}\n"
    ).replace("--use-distributed-optimizer", "").replace("--vocab-size 128256", "")  # fmt: skip
    names = {"model": "llama-3-8b"}
    found = read(tmp_path, {"t.sh": text}, **names)
    assert found.scenario.pinned == {**pinned, "micro_batch": 1}
    assert found.scenario.software.name == software
    assert found.scenario.workload.recipe.tokens == 300e9
    assert not found.unknown
    stage = ("ddp", "zero1", "zero2", "zero3").index(pinned["sharding"])
    config = f'{{"train_batch_size": 128, "zero_optimization": {{"stage": {stage}}}}}'
    both = {"t.sh": text, "ds.json": config}
    assert read(tmp_path, both, **names).scenario.pinned == found.scenario.pinned
    other = {**both, "ds.json": config.replace(f": {stage}", ": 2")}
    with pytest.raises(InputError, match=r"layout\.sharding: .* contradicts zero2"):
        read(tmp_path, other, **names)


def test_what_only_deepspeeds_file_says_is_asked_for(tmp_path: Path) -> None:
    text = f"deepspeed {LLAMA_8B} --deepspeed --deepspeed_config ds.json\n"
    text = text.replace("--use-distributed-optimizer", "")
    with pytest.raises(InputError, match=r"'ds\.json' says more: give it with --from too"):
        read(tmp_path, {"t.sh": text}, gpus=8)
    files = {
        "t.sh": text,
        "ds.json": '{"train_batch_size": 128, "zero_optimization": {"stage": 1}}',
    }
    assert read(tmp_path, files, gpus=8).scenario.pinned["sharding"] == "zero1"
    differ = f"{RUN}1 {LLAMA_8B} --num-experts 64 64 128 128\n"
    with pytest.raises(InputError, match="layers with different numbers of experts"):
        read(tmp_path, {"t.sh": differ})
    merges = LLAMA_8B.replace("--vocab-size 128256", "--vocab-file v.json --merge-file m.txt")
    found = read(tmp_path, {"t.sh": f"{RUN}1 {merges}\n"})
    assert found.scenario.workload.architecture.vocabulary == 50257  # pretrain_gpt.py's tokenizer


def test_an_exchange_in_a_bit_is_named(tmp_path: Path) -> None:
    """The configuration of DeepSpeed's tutorial on 1-bit Adam."""
    text = (
        '{"train_batch_size": 4096, "train_micro_batch_size_per_gpu": 16, "steps_per_print": 100,'
        ' "optimizer": {"type": "OneBitAdam", "params": {"lr": 4e-4, "freeze_step": 23000,'
        ' "cuda_aware": false, "comm_backend_name": "nccl"}}, "fp16": {"enabled": true}}'
    )
    names = {"model": "bert-large", "gpus": 64}
    found = read(tmp_path, {"ds.json": text}, "training.sequence_length=512", **names)
    assert found.scenario.workload.recipe.optimizer == "adamw"
    assert any("OneBitAdam: exchange in a bit is not modelled" in note for note in found.notes)


def test_a_tokenizer_of_a_known_model_says_the_vocabulary(tmp_path: Path) -> None:
    own = LLAMA_8B.replace("--hidden-size 4096", "--hidden-size 2048").replace(
        "--vocab-size 128256", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model {}"
    )
    for place in ("meta-llama/Meta-Llama-3-8B", "/data/Llama-3-8B/tokenizer.model"):
        found = read(tmp_path, {"t.sh": RUN + "1 " + own.format(place)})
        assert found.scenario.workload.architecture.vocabulary == 128256
        assert "vocabulary: that of the tokenizer of llama-3-8b" in found.notes
    with pytest.raises(InputError, match=r"model\.vocab_size=N"):
        read(tmp_path, {"t.sh": RUN + "1 " + own.format("/data/own")})


def test_states_of_sixteen_bit(tmp_path: Path) -> None:
    job = (
        '[model]\nname = "llama4"\nflavor = "17Bx16E"\n[parallelism]\n'
        '[training]\nlocal_batch_size = 1\nseq_len = 4096\ndtype = "bfloat16"\n'
    )
    recipe = read(tmp_path, {"job.toml": job}, gpus=64).scenario.workload.recipe
    assert (recipe.master_weights, recipe.moment_dtype) == (False, "bf16")
    config = (
        '{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "bf16":'
        ' {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true},'
        ' "activation_checkpointing": {"cpu_checkpointing": true}}'
    )
    found = read(
        tmp_path, {"ds.json": config}, "training.sequence_length=1024", gpus=8, model="gpt2-xl"
    )
    recipe = found.scenario.workload.recipe
    assert (recipe.gradient_dtype, recipe.moment_dtype) == ("bf16", "bf16")
    assert sum("not counted" in note or "in fp32" in note for note in found.notes) == 2


def test_a_file_of_deepspeed_that_is_named_is_asked_for(tmp_path: Path) -> None:
    text = (
        "deepspeed --num_gpus=8 train.py --deepspeed ds/zero2.json --max_seq_len 2048 --bf16"
        " --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 4\n"
    )
    with pytest.raises(InputError, match=r"'ds/zero2.json' says more: give it with --from too"):
        read(tmp_path, {"t.sh": text})
    config = '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}'
    found = read(tmp_path, {"t.sh": text, "zero2.json": config})
    assert found.scenario.pinned["sharding"] == "zero2"
    assert found.scenario.workload.architecture.name == "llama-2-7b"
    assert found.scenario.cluster.gpus == 8  # of the launcher, whose last option has a value
    assert found.scenario.workload.recipe.global_batch == 4 * 8  # accumulated once by default


ACCELERATE = (
    "accelerate launch --config_file fsdp.yaml --num_processes 32 train.py --bf16"
    " --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 4 --max_seq_length 4096\n"
)
FSDP = (
    "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n"
    "  fsdp_sharding_strategy: FULL_SHARD\n"
)


def test_accelerates_configuration_decides_how_states_are_shared(tmp_path: Path) -> None:
    (script := tmp_path / "t.sh").write_text(ACCELERATE)
    with pytest.raises(InputError, match=r"'fsdp.yaml' says more: .* --software NAME \(plain-ddp"):
        import_launch([script])
    said = ["layout.sharding=zero3", "cluster.name=dgx-h100"]
    by_option = import_launch([script], {"software": "torch-fsdp"}, said)
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    by_file = import_launch([script], None, said[1:])  # which the script names
    assert by_file.scenario == import_launch([script], {"cluster": "dgx-h100"}).scenario
    assert by_file.paths == (script, tmp_path / "fsdp.yaml")
    assert by_file.scenario.pinned["sharding"] == by_option.scenario.pinned["sharding"] == "zero3"
    assert by_file.scenario.software.name == "torch-fsdp"


def test_what_a_script_names_is_read_in_its_folder_alone(tmp_path: Path) -> None:
    (folder := tmp_path / "job").mkdir()
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    script = folder / "t.sh"
    for named in ("../fsdp.yaml", str(tmp_path / "fsdp.yaml"), "link.yaml", "other.yaml"):
        script.write_text(ACCELERATE.replace("fsdp.yaml", named))
        if named == "link.yaml":
            (folder / named).symlink_to(tmp_path / "fsdp.yaml")
        if named == "other.yaml":
            (folder / named).write_text("neither: a launch file\n")
        with pytest.raises(InputError, match="says more"):
            import_launch([script], {"cluster": "dgx-h100"})


def test_a_sourced_file_beside_the_script_is_read(tmp_path: Path) -> None:
    words = LLAMA_8B.replace("--global-batch-size 128", "--global-batch-size $GBS")
    (script := tmp_path / "t.sh").write_text(f"source $(dirname $0)/common.sh\n{RUN}1 {words}\n")
    (tmp_path / "common.sh").write_text("GBS=96\n")
    found = import_launch([script], {"cluster": "dgx-h100", "gpus": 8})
    assert found.scenario.workload.recipe.global_batch == 96


def test_comments_of_a_script_are_left_alone(tmp_path: Path) -> None:
    text = (
        f"{RUN}1 {LLAMA_8B} \\\n  --tensor-model-parallel-size 1\n"
        "# --pipeline-model-parallel-size 8 was tried\n"
    )
    found = read(tmp_path, {"t.sh": text})
    path = str(tmp_path / "t.sh")
    now = found.predicted().layout
    then = {**now, "pp": 2, "dp": 4, "shard_group": 4}
    changed = rewritten({path: text}, found.readings, (now, then), found.scenario)[path]
    assert "# --pipeline-model-parallel-size 8 was tried" in changed
    again = read(tmp_path, {"t.sh": changed})
    assert again.scenario.pinned["pp"] == 2
    assert changed_text("a = 1\n", {"a": 2}) == "a = 2\n"


@pytest.mark.evidence
def test_what_changed_files_do_not_say_is_named(tmp_path: Path) -> None:
    text = (
        "export MINIBS=1\nexport TP=4\nexport CP=2\nexport PP=1\nexport DGXNNODES=16\n"
        "export DGXNGPU=8\nexport FP8=True\nexport SP=1\nexport MBS=1\n"
    )
    (tmp_path / "c.sh").write_text(text)
    names = {"cluster": "dgx-h100", "model": "llama-2-70b"}
    found = advise([tmp_path / "c.sh"], names, ["training.sequence_length=8192"])
    assert found.changes
    for change, files, unsaid in zip(found.changes, found.changed, found.unsaid, strict=True):
        if not files:
            continue
        path = tmp_path / "again.sh"
        path.write_text(next(iter(files.values())))
        again = import_launch([path], names, ["training.sequence_length=8192"])
        pinned = again.scenario.pinned
        for name, (_, after) in change.fields.items():
            assert (name in unsaid) == (name not in pinned or pinned[name] != after)


def test_the_templates_of_transformers_with_deepspeed(tmp_path: Path) -> None:
    arguments = (
        '{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "bf16": true,'
        ' "max_steps": -1, "deepspeed": "z3.json", "use_liger_kernel": true,'
        ' "attn_implementation": "flash_attention_2", "max_seq_length": 4096,'
        ' "model_name_or_path": "meta-llama/Meta-Llama-3.1-8B-Instruct"}'
    )
    config = (
        '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3,'
        ' "reduce_bucket_size": "auto"}, "train_batch_size": "auto",'
        ' "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}'
    )
    found = read(tmp_path, {"args.json": arguments, "z3.json": config}, gpus=8)
    recipe = found.scenario.workload.recipe
    assert (recipe.global_batch, recipe.tokens, recipe.precision) == (2 * 8 * 8, None, "bf16")
    assert found.scenario.workload.architecture.name == "llama-3.1-8b"
    assert found.scenario.pinned["sharding"] == "zero3"
    assert not found.unknown
    # 2 x 4,096 tokens in pieces of 8,192 / 32: 128,256 logits are 32 times 4,096 (Liger-Kernel)
    assert recipe.loss_chunks == 32


def test_learned_positions_are_those_of_the_command(tmp_path: Path) -> None:
    text = (
        f"{RUN}1 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32"
        " --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1"
        " --global-batch-size 64 --bf16 --vocab-size 50257\n"
    )
    architecture = read(tmp_path, {"t.sh": text}).scenario.workload.architecture
    assert architecture.max_positions == 4096  # gpt3-6.7b, of the same sizes, has 2,048


@pytest.mark.parametrize(("cell", "told"), [("NODE", 1), ("NV18", 0)])
def test_a_topology_that_is_not_the_clusters_is_noted(cell: str, told: int, tmp_path: Path) -> None:
    names = [f"GPU{i}" for i in range(8)]
    rows = [[name, *("X" if name == other else cell for other in names)] for name in names]
    text = "\n".join("\t".join(row) for row in [["", *names], *rows]) + "\n"
    sizes = ("training.sequence_length=2048", "training.global_batch=64")
    found = read(tmp_path, {"topo.txt": text}, *sizes, model="llama-3.1-8b", gpus=16)
    assert sum("foreshard cluster init" in note for note in found.notes) == told


def test_a_labelled_log_of_collectives_is_known(tmp_path: Path) -> None:
    head = (
        " 0: #       size         count      type   redop    root     time   algbw   busbw #wrong"
    )
    sizes = ("training.sequence_length=2048", "training.global_batch=64")
    found = read(tmp_path, {"log.txt": head + "\n"}, *sizes, model="llama-3.1-8b", gpus=8)
    assert any("foreshard calibrate" in note for note in found.notes)


@pytest.mark.parametrize("option", ["layout.tp=eight", "layout.tp=0", "training.global_batch=x"])
def test_options_that_are_no_numbers_are_told(option: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=option.partition("=")[0]):
        read(tmp_path, {"t.sh": f"{RUN}1 {LLAMA_8B}\n"}, option)


def test_blank_lines_are_read_once(tmp_path: Path) -> None:
    """Looking for a table of collectives takes time with the lines, not with their square."""
    with pytest.raises(InputError, match="not recognised"):
        read(tmp_path, {"blank.txt": "\n" * 900_000 + "x\n"})


def test_a_scenario_keeps_its_run(tmp_path: Path) -> None:
    """What is read of other files calls steps ``run.steps``, too; a scenario has no such field."""
    text = (
        '[model]\nname = "llama-3.1-8b"\n[training]\ntokens = 1e12\nsequence_length = 8192\n'
        'global_batch = 256\n[cluster]\nname = "dgx-h100"\ngpus = 64\n'
        '[run]\nstart = "2027-01-01"\nspares = {hot = 8}\ncheckpoints = {every_steps = 50}\n'
    )
    (file := tmp_path / "scenario.toml").write_text(text)
    read_so, alone = import_launch([file]).scenario, load_scenario(file)
    assert read_so.run == alone.run and alone.run.spares.hot == 8
    file.write_text(text.replace('start = "2027-01-01"', 'steps = "shares"'))
    with pytest.raises(InputError, match=r"scenario\.toml: run\.steps: unknown field"):
        import_launch([file])


def test_a_number_that_no_float_holds_is_refused(tmp_path: Path) -> None:
    settings = Settings.of("a.py", [Setting("rate", 10**400, Place("a.py", "rate"))])
    settings.real("training.frozen", "rate")
    (said,) = settings.problems
    assert said.startswith("a.py: rate: must be a number, got 1000") and len(said) < 200


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            f"{RUN}4 {LLAMA_8B} $A --tensor-model-parallel-size 2 $B --sequence-parallel ${{C}}"
            ' --recompute-activations "${D[@]}" `more`\n',
            ["$A", "$B", "${C}", "${D[@]}", "`more`"],
        ),
        (
            "torchrun --nnodes 4 --nproc_per_node 8 run_clm.py --model_name_or_path"
            " meta-llama/Llama-3.1-8B --block_size 4096 --per_device_train_batch_size 2 $A"
            " --gradient_checkpointing $B --torch_dtype bfloat16 $C --fsdp full_shard --bf16 $D\n",
            ["$A", "$B", "$C", "$D"],
        ),
    ],
    ids=["Megatron-LM", "Trainer"],
)
def test_variables_that_nothing_sets_are_the_nothing_that_bash_makes_of_them(
    tmp_path: Path, script: str, words: list[str]
) -> None:
    """Unset, they are no words: argparse sees switches and values without them; each is said."""
    with_variables = read(tmp_path, {"run.sh": script})
    plain = script
    for word in words:
        plain = plain.replace(f'"{word}"', "").replace(f" {word}", "")
    assert "$" not in plain and "`" not in plain
    assert with_variables.scenario.document == read(tmp_path, {"run.sh": plain}).scenario.document
    said = " ".join(with_variables.notes) + " ".join(
        place.key for reading in with_variables.readings for place in reading.unknown
    )
    assert [word for word in words if word not in said] == []


def test_a_variable_behind_a_launcher_may_say_how_many_servers_there_are(tmp_path: Path) -> None:
    """torchrun has one server by default (torch/distributed/run.py), unless ARGS says otherwise."""
    script = f"torchrun $ARGS --nproc_per_node 8 {LLAMA_8B}\n"
    with pytest.raises(InputError, match=r"cluster\.gpus: not said"):
        read(tmp_path, {"run.sh": script})
    assert read(tmp_path, {"run.sh": script}, gpus=16).scenario.document["cluster"]["gpus"] == 16


def test_which_kernels_adamw_has_is_said_where_it_counts(tmp_path: Path) -> None:
    """DeepSpeed, named in accelerate's file alone, brings kernels of its own."""
    script = (
        "accelerate launch --config_file acc.yaml run_clm.py --block_size 4096 --bf16"
        " --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2\n"
    )
    alone = "compute_environment: LOCAL_MACHINE\nnum_processes: 8\nnum_machines: 1\n"
    way = {"DEEPSPEED": "deepspeed_config: {zero_stage: 2}\n", "MULTI_GPU": ""}
    for word, more in way.items():
        accelerate = f"{alone}distributed_type: {word}\n{more}"
        found = read(tmp_path, {"run.sh": script, "acc.yaml": accelerate})
        said = [note for note in found.notes if "adamw" in note]
        applied = found.scenario.document.get("software", {}).get("adamw")
        assert (applied, len(said)) == ((None, 0) if word == "DEEPSPEED" else ("fused", 1))


def test_a_wrong_option_is_said_before_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, {"ds.json": '{"train_micro_batch_size_per_gpu": 1}'}, "cluster.gpus=abc")
    assert caught.value.problems[0] == "--set: cluster.gpus: must be a whole number, got 'abc'"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # Megatron-LM@d98e8a64, training/arguments.py: validate_args asserts that one is off
        ("run.sh", f"{RUN}1 {LLAMA_8B} --fp16\n"),
        # transformers 5.24, training_args.py: "At most one of fp16 and bf16 can be True"
        (
            "run.sh",
            f"{RUN}1 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --fp16 --bf16 True"
            " --block_size 4096 --per_device_train_batch_size 1\n",
        ),
        # DeepSpeed@edaa7221, runtime/config.py: "modes cannot be simultaneously enabled"
        (
            "ds.json",
            '{"train_micro_batch_size_per_gpu": 1, "train_batch_size": 8,'
            ' "fp16": {"enabled": true}, "bf16": {"enabled": true}}',
        ),
    ],
    ids=["Megatron-LM", "Trainer", "DeepSpeed"],
)
def test_two_precisions_are_asked_for(tmp_path: Path, name: str, text: str) -> None:
    given = {"gpus": 8, **({"model": "llama-3.1-8b"} if name == "ds.json" else {})}
    length = ["training.sequence_length=4096"]
    with pytest.raises(InputError, match=r"of which a run has one: --set training\.precision"):
        read(tmp_path, {name: text}, *length, **given)
    chosen = read(tmp_path, {name: text}, *length, "training.precision=fp16", **given)
    assert chosen.scenario.workload.recipe.precision == "fp16"


@pytest.mark.parametrize(
    "program",
    [
        # NVIDIA/Megatron-LM@d98e8a64 and alibaba/Pai-Megatron-Patch@a098ca5 have scripts with each
        *("examples/multimodal/run_text_generation.py", "tools/run_text_generation_server.py"),
        *("examples/inference/gpt/gpt_static_inference.py", "evaluate_megatron_llama.py"),
        *("tools/checkpoint/convert.py", "impl/convert.py"),
    ],
)
def test_programs_that_train_nothing_are_no_training_run(tmp_path: Path, program: str) -> None:
    script = f"{RUN}1 {LLAMA_8B.replace('pretrain_gpt.py', program)}\n"
    with pytest.raises(InputError, match="a program that trains nothing"):
        read(tmp_path, {"run.sh": script})
    trains = f"torchrun --nproc_per_node 8 {LLAMA_8B} --train-iters 10\n"
    both = read(tmp_path, {"run.sh": f"{script.rstrip()} --load a --save b --lr 1\n{trains}"})
    assert both.scenario.document["training"]["tokens"] == 10 * 128 * 8192


@pytest.mark.parametrize(
    "line",
    [
        "grep 'elapsed time per iteration (ms):' log",
        "# quiet: :::MLLOG lines alone",
        "grep -E 'step: .* tps: ' log | tail",
        "grep 'train_step_timing in s' log",
        "awk '/CurrSamplesPerSec=/' log",
        "# prints device mesh with its names",
    ],
)
def test_a_script_that_looks_for_lines_of_a_log_is_none(tmp_path: Path, line: str) -> None:
    """AMD-AGI/Primus@fd1eeabb, examples/mlperf/llama2_70b/run_with_docker.sh has the second."""
    found = read(tmp_path, {"run.sh": f"#!/bin/bash\n{RUN}1 {LLAMA_8B}\n{line}\n"})
    assert found.scenario.workload.recipe.global_batch == 128


CHAT = (
    "deepspeed main.py --model_name_or_path meta-llama/Llama-2-7b-hf --data_split 2,4,4"
    " --per_device_train_batch_size 4 --max_seq_len 512 --zero_stage {} --deepspeed"
    " --gradient_checkpointing {}\n"
)


@pytest.mark.parametrize(
    ("stage", "more", "precision", "offload"),
    [
        (3, "", "fp16", "none"),
        (3, "--offload --dtype bf16", "bf16", "cpu"),
        (2, "", "fp16", "none"),
    ],
)
def test_deepspeed_chat_makes_a_configuration_of_its_own(
    tmp_path: Path, stage: int, more: str, precision: str, offload: str
) -> None:
    """DeepSpeedExamples@45b4b715: main.py (--dtype fp16 by default), dschat/utils/ds_utils.py."""
    found = read(tmp_path, {"run.sh": CHAT.format(stage, more)}, gpus=8)
    recipe, pinned = found.scenario.workload.recipe, found.scenario.pinned
    assert (recipe.precision, pinned["sharding"]) == (precision, f"zero{stage}")
    assert pinned.get("optimizer_offload", "none") == offload
    assert pinned.get("parameter_offload", "none") == offload
    if stage == 3:  # stage3_max_live_parameters = 3e7, half of it for each of two directions
        assert found.scenario.software.deepspeed_zero.live_parameters == 1.5e7
    else:
        assert found.scenario.software.overlap.gradient_reduce  # overlap_comm
    assert not found.unknown


AUTOMODEL = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler: {global_batch_size: 64, local_batch_size: 1, max_steps: 100}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.1-8B
distributed: {strategy: fsdp2, tp_size: 1, cp_size: 1, activation_checkpointing: false}
dataset: {seq_len: 2048}
"""


def test_options_over_a_configuration_are_those_of_its_trainer(tmp_path: Path) -> None:
    """NVIDIA-NeMo/Automodel@36044ad3, tests/functional_tests/hf_transformer_llm: no Megatron."""
    script = (
        "torchrun --nproc_per_node=8 examples/llm_finetune/finetune.py --config llama/squad.yaml"
        " --step_scheduler.local_batch_size 2 --distributed.tp_size 2"
        " --distributed.activation_checkpointing true\n"
    )
    with pytest.raises(InputError, match=r"llama/squad\.yaml: give that file with --from too"):
        read(tmp_path, {"run.sh": script})
    sets = ["training.sequence_length=2048"]
    found = read(tmp_path, {"run.sh": script, "squad.yaml": AUTOMODEL}, *sets)
    assert found.scenario.software.name == "torch-fsdp"
    assert found.scenario.workload.recipe.global_batch == 64
    pinned = found.scenario.pinned
    assert (pinned["tp"], pinned["micro_batch"], pinned["recompute"]) == (2, 2, "full")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        # allenai/open-instruct@e6c3044a, scripts/train: global_batch_size counts tokens there
        (
            "python src/scripts/train/sft/Olmo-3-7B-SFT.py train run cluster --seq_len=32768"
            " --global_batch_size=1048576 --trainer.max_duration.value=2"
            " --train_module.optim.lr=8e-5 --launch.num_gpus=8",
            "OLMo-core",
        ),
        (
            "accelerate launch --mixed_precision bf16 open_instruct/finetune.py --mixer_list a 1.0"
            " --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 1",
            "open-instruct",
        ),
        # alibaba/Pai-Megatron-Patch@a098ca5, examples/qwen3/run_mcore_qwen3_8b_chatlearn.sh
        (
            "python chatlearn/entrypoint.py grpo runtime_args.train_global_batch_size=2048"
            " models.policy_trainer.tensor_model_parallel_size=8",
            "ChatLearn",
        ),
    ],
)
def test_options_of_trainers_that_are_not_read_are_known_by_name(
    tmp_path: Path, command: str, name: str
) -> None:
    with pytest.raises(InputError, match=f"a file of {name}"):
        read(tmp_path, {"run.sh": f"{command}\n"})


@pytest.mark.parametrize(
    ("left_out", "tied", "groups", "rows"),
    [
        # Megatron-LM@d98e8a64, training/argument_utils.py: core_transformer_config_from_args
        (" --group-query-attention", False, 32, 0),
        # training/arguments.py: embeddings are shared and positions learned unless told
        (" --untie-embeddings-and-output-weights", True, 8, 0),
        (" --position-embedding-type rope", False, 8, 8192),
    ],
)
def test_a_switch_of_megatron_that_is_not_there_is_off(
    tmp_path: Path, left_out: str, tied: bool, groups: int, rows: int
) -> None:
    """Sizes of Llama 3 8B: a table of 128256 x 4096, keys and values of 128 for each head."""
    command = f"{LLAMA_8B} --max-position-embeddings 8192"
    assert left_out in command
    found = read(tmp_path, {"run.sh": f"{RUN}1 {command.replace(left_out, '')}\n"})
    arch = found.scenario.workload.architecture
    assert (arch.tied_embeddings, arch.attentions[0].kv_heads) == (tied, groups)
    more = 32 * 2 * (groups - 8) * 128 * 4096 + rows * 4096 - tied * 128256 * 4096
    assert arch.parameters == 8_030_261_248 + more


def test_megatron_computes_in_fp32_unless_told(tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM@d98e8a64, training/arguments.py: params_dtype = torch.float."""
    found = read(tmp_path, {"run.sh": f"{RUN}1 {LLAMA_8B.replace(' --bf16', '')}\n"})
    assert found.scenario.workload.recipe.precision == "fp32"
    assert "Megatron-LM computes in fp32" in " ".join(found.notes)


@pytest.mark.parametrize(
    ("more", "stages"),
    [
        # core/transformer/transformer_block.py, get_num_layers_to_build
        (
            "--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 8",
            (6, 9, 9, 8),
        ),
        ("--decoder-last-pipeline-num-layers 5", (9, 9, 9, 5)),
        (
            "--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6"
            " --num-virtual-stages-per-pipeline-rank 2",
            (3, 5, 5, 3, 3, 5, 5, 3),
        ),
        (
            "--num-layers 34 --account-for-embedding-in-pipeline-split"
            " --account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 3",
            (2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2),
        ),
    ],
)
def test_uneven_stages_of_megatron(tmp_path: Path, more: str, stages: tuple[int, ...]) -> None:
    script = f"{RUN}4 {LLAMA_8B} --pipeline-model-parallel-size 4 {more}\n"
    found = read(tmp_path, {"run.sh": script})
    stated = next(o.value for o in found.origins if o.field == "layout.stages")
    assert (tuple(stated), found.unknown) == (stages, ())
    assert sum(stages) == found.scenario.workload.architecture.layers


def test_stages_that_leave_no_whole_layers_are_refused(tmp_path: Path) -> None:
    command = f"{LLAMA_8B} --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 6"
    with pytest.raises(InputError, match="32 layers cannot be dealt so to pp 4"):
        read(tmp_path, {"run.sh": f"{RUN}4 {command}\n"})


def test_recomputed_activations_stand_above_the_granularity(tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM@d98e8a64, training/arguments.py, validate_args."""
    again = "--recompute-granularity full --recompute-activations"
    found = read(tmp_path, {"run.sh": f"{RUN}1 {LLAMA_8B} {again}\n"})
    assert found.scenario.pinned["recompute"] == "selective"
    uniform = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4"
    found = read(tmp_path, {"run.sh": f"{RUN}1 {LLAMA_8B} {uniform}\n"})
    assert "of 4 layers one input is kept" in " ".join(found.notes)


def test_experts_are_gathered_unless_the_command_says_how_tokens_reach_them(tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM@d98e8a64, transformer_config.py: moe_token_dispatcher_type."""
    command = f"{RUN}1 {LLAMA_8B} --num-experts 8 --expert-model-parallel-size 8"
    assert read(tmp_path, {"run.sh": f"{command}\n"}).scenario.pinned["dispatcher"] == "allgather"
    said = f"{command} --moe-token-dispatcher-type alltoall\n"
    assert read(tmp_path, {"run.sh": said}).scenario.pinned["dispatcher"] == "alltoall"


def test_a_vocabulary_that_is_said_beside_a_command_is_the_models(tmp_path: Path) -> None:
    """Viking 7B (LumiOpen): 131,072 tokens behind GPT-2's kind of tokenizer, 7.55B parameters."""
    sizes = (
        "pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008"
        " --num-attention-heads 32 --swiglu --normalization RMSNorm --disable-bias-linear"
        " --untie-embeddings-and-output-weights --use-rotary-position-embeddings --bf16"
        " --seq-length 4096 --micro-batch-size 1 --global-batch-size 64"
        " --tokenizer-type GPT2BPETokenizer --vocab-file {words}\n"
    )
    run = f"{RUN}1 {sizes}"
    own = {"s.sh": run.format(words="/tokenizers/nordic_131072/vocab.json")}
    told = read(tmp_path, own)
    assert any("is taken to have the 50,257 tokens" in note for note in told.notes)
    said = read(tmp_path, own, "model.vocab_size=131072")
    assert said.scenario.workload.architecture.parameters == pytest.approx(7.55e9, rel=1e-3)
    assert not any("50,257" in note for note in said.notes)
    usual = read(tmp_path, {"s.sh": run.format(words="/data/gpt2-vocab.json")})
    assert not any("50,257" in note for note in usual.notes)
