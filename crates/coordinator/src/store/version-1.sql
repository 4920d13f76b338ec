-- A store of version 1, as Slackline wrote it at commit 2ac8499 (sqlite3 .dump, tables in the order of their references): an
-- experiment of three evaluations with its verification, to which two more evaluations and one by hand were granted.
CREATE TABLE schema_version (version BIGINT NOT NULL);
INSERT INTO "schema_version" VALUES(1);
CREATE TABLE experiments (
    id BIGINT PRIMARY KEY,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    wish TEXT,
    dir TEXT NOT NULL,
    source TEXT NOT NULL,
    spec TEXT NOT NULL,
    budget TEXT,
    prior TEXT,
    parent BIGINT,
    created_ms BIGINT NOT NULL,
    queued_ms BIGINT,
    message TEXT,
    verification BIGINT NOT NULL,
    plan TEXT,
    report TEXT NOT NULL,
    promotion TEXT
);
INSERT INTO "experiments" VALUES(1,'toy','done',NULL,'/toy','{"name":"toy","seed":1,"parameters":[{"name":"x","type":"int","low":0,"high":100,"file":"/toy/knob"}],
"target":{"start":["sleep","1000"],"ready":{"command":["true"],"timeout_s":1},"stop":{"signal":"TERM","grace_s":1}},
"workload":{"command":["sh","-c","v=$(cat /toy/knob); us=$(( (v-20)*(v-20) + 1000 )); echo \"{\\\"requests\\\": 1000, \\\"latency_p99_us\\\": $us}\""],"json":{"requests":"requests","latency_p99_us":"latency_p99_us"}},
"objective":{"metric":"latency_p99_us"},
"evaluation":{"warm_up_s":0,"block_s":0.05,"blocks":2,"early_abort":false},
"budget":{"evaluations":3},"search":{"strategy":"random"},"verification":{"runs":2}}
','{"name":"toy","seed":1,"parameters":[{"name":"x","type":"int","low":0.0,"high":100.0,"scale":"linear","default":50,"file":"/toy/knob","optional":false}],"target":{"pairing":"alternating","start":["sleep","1000"],"ready":{"command":["true"],"timeout_s":1.0},"stop":{"signal":"TERM","grace_s":1.0}},"workload":{"command":["sh","-c","v=$(cat /toy/knob); us=$(( (v-20)*(v-20) + 1000 )); echo \"{\\\"requests\\\": 1000, \\\"latency_p99_us\\\": $us}\""],"json":{"latency_p99_us":"latency_p99_us","requests":"requests"},"grace_s":30.0},"objective":{"metric":"latency_p99_us","goal":"minimise","std_weight":0.0,"scale":"ratio"},"evaluation":{"warm_up_s":0.0,"block_s":0.05,"blocks":2,"settle_s":0.0,"early_abort":false,"abort_alpha":0.05,"abort_min_blocks":3},"budget":{"evaluations":3},"verification":{"top":1,"runs":2,"confidence":0.95},"search":{"strategy":"random","acquisition":"log-noisy-ei"}}','{"evaluations":5}',NULL,NULL,1795338595131,1795338595131,NULL,2,NULL,'{"name":"toy","started":"2026-11-22T09:09:55.131Z","duration_s":2.072029993,"own_cpu_cores":0.12306664433866348,"version":"0.1.0","machine":{"kernel":"6.18.0","cpus":2,"cpu_model":"a processor","memory_bytes":25276510208,"cgroup":"hybrid","is_virtual":true},"spec":{"name":"toy","seed":1,"parameters":[{"name":"x","type":"int","low":0.0,"high":100.0,"scale":"linear","default":50,"file":"/toy/knob","optional":false}],"target":{"pairing":"alternating","start":["sleep","1000"],"ready":{"command":["true"],"timeout_s":1.0},"stop":{"signal":"TERM","grace_s":1.0}},"workload":{"command":["sh","-c","v=$(cat /toy/knob); us=$(( (v-20)*(v-20) + 1000 )); echo \"{\\\"requests\\\": 1000, \\\"latency_p99_us\\\": $us}\""],"json":{"latency_p99_us":"latency_p99_us","requests":"requests"},"grace_s":30.0},"objective":{"metric":"latency_p99_us","goal":"minimise","std_weight":0.0,"scale":"ratio"},"evaluation":{"warm_up_s":0.0,"block_s":0.05,"blocks":2,"settle_s":0.0,"early_abort":false,"abort_alpha":0.05,"abort_min_blocks":3},"budget":{"evaluations":3},"verification":{"top":1,"runs":2,"confidence":0.95},"search":{"strategy":"random","acquisition":"log-noisy-ei"}},"skipped":[],"control":{"x":50},"evaluations":[],"recommended":{"configuration":{"x":8},"mean":-0.5058427342163062,"sd":0.02837351297551927},"verification":[{"name":"candidate 1","is_candidate":true,"configuration":{"x":8},"ratios":{"latency_p99_us":{"low":0.6021052631578946,"estimate":0.6021052631578946,"high":0.6021052631578946,"confidence":0.95}},"without_interval":{},"means":{"latency_p99_us":[1900.0,1144.0]},"violated":[],"faults":[],"runs":2,"blocks":4,"runs_blocks":[]}],"finding":"improvement","sentence":"Shown: −39.8 % [−39.8, −39.8] of latency_p99_us against the control (95 % confidence, 2 fresh runs, 4 pairs of blocks); every constraint held on average.","interrupted":null,"error":null,"promoted":[],"settings":["echo 8 > /toy/knob"]}',NULL);
CREATE TABLE evaluations (
    experiment BIGINT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    configuration TEXT NOT NULL,
    outcome TEXT NOT NULL,
    is_to_be_killed BIGINT NOT NULL,
    reason TEXT,
    failure TEXT,
    score DOUBLE PRECISION,
    measurement TEXT,
    started_ms BIGINT NOT NULL,
    duration_s DOUBLE PRECISION,
    own_cpu_s DOUBLE PRECISION,
    PRIMARY KEY (experiment, number)
);
INSERT INTO "evaluations" VALUES(1,1,'{"x":40}','completed',0,NULL,NULL,-3.05381649551181910684e-01,'{"score":-0.3053816495511819,"score_variance":0.0,"excess":{},"excess_variance":{}}',1795338595201,0.356151937,0.052198596);
INSERT INTO "evaluations" VALUES(1,2,'{"x":8}','completed',0,NULL,NULL,-5.07322993214788686699e-01,'{"score":-0.5073229932147887,"score_variance":0.0,"excess":{},"excess_variance":{}}',1795338595564,0.476990643,5.28449160000000056625e-02);
INSERT INTO "evaluations" VALUES(1,3,'{"x":60}','completed',0,NULL,NULL,3.13657558855041596057e-01,'{"score":0.3136575588550416,"score_variance":0.0,"excess":{},"excess_variance":{}}',1795338596048,4.78621236000000060961e-01,5.63908589999999876329e-02);
CREATE TABLE blocks (
    experiment BIGINT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    evaluation BIGINT NOT NULL,
    number BIGINT NOT NULL,
    block TEXT NOT NULL,
    PRIMARY KEY (experiment, evaluation, number)
);
INSERT INTO "blocks" VALUES(1,1,1,'{"start_s":0.041476467,"order":"control-first","control":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.018699123,"involuntary_switches":0.0,"latency_p99_us":1900.0,"requests":1000.0},"experiment":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.013209311,"involuntary_switches":0.0,"latency_p99_us":1400.0,"requests":1000.0}}');
INSERT INTO "blocks" VALUES(1,1,2,'{"start_s":0.213103309,"order":"experiment-first","control":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.01691351,"involuntary_switches":0.0,"latency_p99_us":1900.0,"requests":1000.0},"experiment":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.026556193,"involuntary_switches":0.0,"latency_p99_us":1400.0,"requests":1000.0}}');
INSERT INTO "blocks" VALUES(1,2,1,'{"start_s":0.483223193,"order":"control-first","control":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.074578389,"involuntary_switches":0.0,"latency_p99_us":1900.0,"requests":1000.0},"experiment":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.02157376,"involuntary_switches":0.0,"latency_p99_us":1144.0,"requests":1000.0}}');
INSERT INTO "blocks" VALUES(1,2,2,'{"start_s":0.656841039,"order":"experiment-first","control":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.01728822,"involuntary_switches":0.0,"latency_p99_us":1900.0,"requests":1000.0},"experiment":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.010949539,"involuntary_switches":0.0,"latency_p99_us":1144.0,"requests":1000.0}}');
INSERT INTO "blocks" VALUES(1,3,1,'{"start_s":0.922543309,"order":"control-first","control":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.022276602,"involuntary_switches":0.0,"latency_p99_us":1900.0,"requests":1000.0},"experiment":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.036343058,"involuntary_switches":0.0,"latency_p99_us":2600.0,"requests":1000.0}}');
INSERT INTO "blocks" VALUES(1,3,2,'{"start_s":1.120443201,"order":"experiment-first","control":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.020324618,"involuntary_switches":0.0,"latency_p99_us":1900.0,"requests":1000.0},"experiment":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.041688176,"involuntary_switches":0.0,"latency_p99_us":2600.0,"requests":1000.0}}');
CREATE TABLE runs (
    experiment BIGINT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    verification BIGINT NOT NULL,
    arm BIGINT NOT NULL,
    run BIGINT NOT NULL,
    measured TEXT NOT NULL,
    PRIMARY KEY (experiment, verification, arm, run)
);
INSERT INTO "runs" VALUES(1,1,0,1,'{"arm":0,"run":1,"blocks":[{"start_s":1.471407288,"order":"control-first","control":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.015492578,"involuntary_switches":0.0,"latency_p99_us":1900.0,"requests":1000.0},"experiment":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.058618688,"involuntary_switches":0.0,"latency_p99_us":1144.0,"requests":1000.0}},{"start_s":1.5792806449999999,"order":"experiment-first","control":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.021711356,"involuntary_switches":0.0,"latency_p99_us":1900.0,"requests":1000.0},"experiment":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.028284186,"involuntary_switches":0.0,"latency_p99_us":1144.0,"requests":1000.0}}],"fault":null}');
INSERT INTO "runs" VALUES(1,1,0,2,'{"arm":0,"run":2,"blocks":[{"start_s":1.870471533,"order":"control-first","control":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.012785366,"involuntary_switches":0.0,"latency_p99_us":1900.0,"requests":1000.0},"experiment":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.012217167,"involuntary_switches":0.0,"latency_p99_us":1144.0,"requests":1000.0}},{"start_s":1.956108837,"order":"experiment-first","control":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.032697497,"involuntary_switches":0.0,"latency_p99_us":1900.0,"requests":1000.0},"experiment":{"context_switches":0.0,"cpu_s":0.0,"cpu_system_s":0.0,"cpu_user_s":0.0,"duration_s":0.01129339,"involuntary_switches":0.0,"latency_p99_us":1144.0,"requests":1000.0}}],"fault":null}');
CREATE TABLE queue (
    experiment BIGINT NOT NULL REFERENCES experiments (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    configuration TEXT NOT NULL,
    PRIMARY KEY (experiment, position)
);
INSERT INTO "queue" VALUES(1,1,'{"x":30}');
CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO "counters" VALUES('experiments',1);
