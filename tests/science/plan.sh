# What the study runs: one line a unit, in the order in which they are worth having. A unit is one job of the fleet and one
# file of rows; `tests/science/run` skips a unit whose file is there.
#   unit NAME DATASET PROBLEMS REPEATS SAMPLING POLICIES BUDGETS [INTERVAL]

policies_of_the_paper="rkv reasonalloc reasonalloc-relative layer-only head-only head-only-relative snapkv"
policies_around_it="ada-rkv pyramid-rkv dynamic h2o tova random streaming"
budgets=64,96,128,160,192,224

unit narrow/full narrow 512 1 greedy full 128
for policy in $policies_of_the_paper $policies_around_it; do unit "narrow/$policy" narrow 512 1 greedy "$policy" $budgets; done

# Each knob by itself, where the policies part.
for b in 128 160; do
    unit narrow-knobs/head-$b narrow 512 1 greedy \
        reasonalloc:mu=0,reasonalloc:mu=0.5,reasonalloc:beta=0,reasonalloc:beta=1,reasonalloc:beta=1,mu=0,reasonalloc-relative:mu=0,reasonalloc-relative:beta=1,reasonalloc:utility=mass,reasonalloc:smooth=0.5 $b
    unit narrow-knobs/layer-$b narrow 512 1 greedy \
        layer-only:gamma=0.25,layer-only:gamma=1,layer-only:demand=pooled,reasonalloc:gamma=1 $b
    unit narrow-knobs/sinks-$b narrow 512 1 greedy rkv:sinks=4,reasonalloc:sinks=4,snapkv:sinks=4 $b
    unit narrow-knobs/prompt-$b narrow 512 1 greedy \
        rkv:protect-prompt=1,reasonalloc:protect-prompt=1,snapkv:protect-prompt=1,random:protect-prompt=1,streaming:protect-prompt=1,rkv:prompt=at-prefill,reasonalloc:prompt=at-prefill $b
done

# Interval at equal peak: budget + interval is 192, then 224. Interval 32 is in the tables above.
for peak in 192 224; do
    for interval in 8 16 64 128; do
        unit narrow-interval/peak-$peak-interval-$interval narrow 512 1 greedy rkv,reasonalloc $((peak - interval)) $interval
    done
done

unit chain-arith/full chain-arith 512 1 greedy full 128
for policy in $policies_of_the_paper; do unit "chain-arith/$policy" chain-arith 512 1 greedy "$policy" $budgets; done

unit narrow-sampled/full narrow 100 8 sampled full 128
for policy in $policies_of_the_paper; do unit "narrow-sampled/$policy" narrow 100 8 sampled "$policy" 96,128,160,192; done

for policy in $policies_around_it; do unit "chain-arith/$policy" chain-arith 512 1 greedy "$policy" $budgets; done
for policy in $policies_around_it; do unit "narrow-sampled/$policy" narrow 100 8 sampled "$policy" 96,128,160,192; done

# What the units above suggest as kvfleet's default, tried on the other problems too; and budgets up to where nothing is lost.
unit chain-arith-knobs/sinks chain-arith 512 1 greedy rkv:sinks=4,reasonalloc:sinks=4 96,128,160,192,224
unit narrow-knobs/sinks narrow 512 1 greedy reasonalloc:sinks=4 96,192,224
unit chain-arith-interval/peak-224-interval-16 chain-arith 512 1 greedy rkv,reasonalloc,reasonalloc:sinks=4 208 16
unit narrow-knobs/free narrow 512 1 greedy rkv,reasonalloc,reasonalloc:sinks=4 256,288,320
unit chain-arith-knobs/free chain-arith 512 1 greedy rkv,reasonalloc,reasonalloc:sinks=4 256,320,384
