//! The table of the interface's operations: what each takes and what it answers.

use bayes_opt::Configuration;
use coordinator::store::ExperimentSummary;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

use crate::api::{
    FullEvaluation, HostState, InForce, ListedEvaluation, Points, RolledBack, Rounds, Shown,
    SpecCheck, Status, Verification, WorkersState,
};
use crate::audit::Entry;
use crate::explain::{Explanation, Pair};

/// One verb.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    pub(super) body: Option<Body>,
    /// Name, schema, meaning.
    pub(super) query: &'static [(&'static str, &'static str, &'static str)],
    /// The status of success.
    pub(super) status: u16,
    pub(super) answer: Answer,
}

/// What a request has to bring.
pub(super) enum Body {
    Spec,
    Fork,
    Budget,
    Confirmation,
    Configuration,
    Note,
    Report,
}

/// What a success answers.
pub(super) enum Answer {
    /// JSON, with the schema of its type.
    Json(fn(&mut SchemaGenerator) -> Value),
    /// A report or a table, as the query asks.
    Export,
    /// A stream of events.
    Events,
    Nothing,
}

/// The schema of a type, or a reference to it.
pub(super) fn of<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

const fn get<T: JsonSchema>(
    path: &'static str,
    name: &'static str,
    summary: &'static str,
) -> Operation {
    Operation {
        method: "get",
        path,
        name,
        summary,
        body: None,
        query: &[],
        status: 200,
        answer: Answer::Json(of::<T>),
    }
}

const fn post<T: JsonSchema>(
    path: &'static str,
    name: &'static str,
    summary: &'static str,
) -> Operation {
    Operation {
        method: "post",
        ..get::<T>(path, name, summary)
    }
}

/// Every operation of the interface.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        query: &[
            (
                "state",
                "string",
                "list only experiments in this state: queued, running, paused, done, stopped or failed",
            ),
            (
                "limit",
                "integer",
                "largest number of entries; all by default",
            ),
        ],
        ..get::<Vec<ExperimentSummary>>(
            "/experiments",
            "list",
            "List the experiments, newest first",
        )
    },
    Operation {
        body: Some(Body::Spec),
        status: 201,
        ..post::<Shown>(
            "/experiments",
            "create",
            "Create an experiment from a specification and put it in the queue",
        )
    },
    Operation {
        body: Some(Body::Report),
        status: 201,
        ..post::<Shown>(
            "/experiments/import",
            "import",
            "Import a report written by `slackline tune --json` or by an export",
        )
    },
    get::<Shown>("/experiments/{id}", "show", "Show one experiment"),
    Operation {
        method: "delete",
        status: 204,
        answer: Answer::Nothing,
        ..get::<()>(
            "/experiments/{id}",
            "delete",
            "Delete an experiment that does not run, with all its evaluations",
        )
    },
    post::<Shown>(
        "/experiments/{id}/pause",
        "pause",
        "Pause an experiment after its current evaluation",
    ),
    post::<Shown>(
        "/experiments/{id}/resume",
        "resume",
        "Resume a paused, stopped, done or failed experiment. It waits in the queue, and then continues where it ended",
    ),
    post::<Shown>(
        "/experiments/{id}/stop",
        "stop",
        "Stop an experiment now. The evaluation that is being measured is killed",
    ),
    post::<Shown>(
        "/experiments/{id}/verify",
        "verify",
        "Stop searching, and verify the best configurations so far on fresh runs",
    ),
    post::<Shown>(
        "/experiments/{id}/promote",
        "promote",
        "Put an experiment's verified winner in force on the host",
    ),
    post::<RolledBack>(
        "/experiments/{id}/rollback",
        "rollback",
        "Undo an experiment's promotion: each file becomes as it was before the promotion, and each knob gets the control's \
         value. `promotion.left` lists what could not be restored. The next rollback tries only these",
    ),
    Operation {
        body: Some(Body::Confirmation),
        ..post::<Shown>(
            "/experiments/{id}/forget-rest",
            "forget-rest",
            "Forget the files and knobs that a rollback could not restore. They stay as they are, and the experiment can be \
             deleted. Without `confirm`, the request is refused, and the answer lists them",
        )
    },
    Operation {
        body: Some(Body::Fork),
        status: 201,
        ..post::<Shown>(
            "/experiments/{id}/fork",
            "fork",
            "Create an experiment that starts from the evaluations of this one",
        )
    },
    Operation {
        method: "put",
        body: Some(Body::Budget),
        ..get::<Shown>(
            "/experiments/{id}/budget",
            "budget",
            "Set the total number of evaluations, and optionally the time limit",
        )
    },
    Operation {
        method: "put",
        body: Some(Body::Note),
        ..get::<Shown>(
            "/experiments/{id}/note",
            "note",
            "Write a note on an experiment",
        )
    },
    get::<Vec<Configuration>>(
        "/experiments/{id}/queue",
        "queue",
        "List the enqueued configurations in the order in which they will be measured",
    ),
    Operation {
        body: Some(Body::Configuration),
        status: 201,
        ..post::<Configuration>(
            "/experiments/{id}/queue",
            "enqueue",
            "Enqueue a configuration: it is measured before the search's next proposal",
        )
    },
    Operation {
        query: &[("format", "string", "json, csv or parquet; json by default")],
        answer: Answer::Export,
        ..get::<()>(
            "/experiments/{id}/export",
            "export",
            "Get the whole report, or the evaluations as a table",
        )
    },
    get::<Points>(
        "/experiments/{id}/points",
        "points",
        "Get the evaluations in columns, for plots",
    ),
    get::<Explanation>(
        "/experiments/{id}/model",
        "model",
        "Get the importance and the trend of every parameter, from the model",
    ),
    Operation {
        query: &[
            ("x", "string", "the first parameter"),
            ("y", "string", "the second parameter"),
        ],
        ..get::<Pair>(
            "/experiments/{id}/model/pair",
            "model-pair",
            "Get the model's prediction over two parameters",
        )
    },
    get::<Rounds>(
        "/experiments/{id}/rounds",
        "rounds",
        "Get the rounds of a continuous experiment in columns, with the evidence of its drift tests",
    ),
    get::<Verification>(
        "/experiments/{id}/verification",
        "verification",
        "Get the candidates of the verification and their runs",
    ),
    Operation {
        query: &[
            (
                "from",
                "integer",
                "number of the first evaluation; 1 by default",
            ),
            (
                "limit",
                "integer",
                "largest number of entries; all by default",
            ),
            (
                "outcome",
                "string",
                "list only evaluations with this outcome: running, completed, violated, crashed, aborted, killed or failed",
            ),
        ],
        ..get::<Vec<ListedEvaluation>>(
            "/experiments/{id}/evaluations",
            "evaluations",
            "List an experiment's evaluations, without their blocks",
        )
    },
    get::<FullEvaluation>(
        "/experiments/{id}/evaluations/{number}",
        "evaluation",
        "Show one evaluation with its blocks",
    ),
    post::<Shown>(
        "/experiments/{id}/evaluations/{number}/kill",
        "kill",
        "Kill one evaluation that is being measured. The experiment continues",
    ),
    Operation {
        method: "put",
        body: Some(Body::Note),
        ..get::<Shown>(
            "/experiments/{id}/evaluations/{number}/note",
            "note-evaluation",
            "Write a note on one evaluation",
        )
    },
    Operation {
        body: Some(Body::Spec),
        ..post::<SpecCheck>(
            "/specs/check",
            "check",
            "Check a specification. If it is wrong, the answer names the error, its line and its key",
        )
    },
    get::<HostState>(
        "/host",
        "host",
        "Show what is changed on the host now, and what Slackline can do on this host",
    ),
    get::<InForce>(
        "/promotions",
        "promotions",
        "List what is in force on the host from experiments of this server, from `tune --promote` and from `apply`. With the \
         role write, the list also says who promoted an experiment's configuration",
    ),
    get::<WorkersState>(
        "/workers",
        "workers",
        "List the workers on other hosts, with the numbers of orders that they claimed and of results that they sent",
    ),
    get::<Status>(
        "/status",
        "status",
        "Show the trouble of the server, if any, whether the queue is paused, and what is being measured",
    ),
    post::<Status>(
        "/queue/pause",
        "pause-queue",
        "Pause the queue. The evaluation that is being measured runs to its end",
    ),
    post::<Status>("/queue/resume", "resume-queue", "Resume the queue"),
    Operation {
        query: &[
            (
                "limit",
                "integer",
                "largest number of entries; 100 by default",
            ),
            (
                "experiment",
                "integer",
                "list only changes of this experiment",
            ),
        ],
        ..get::<Vec<Entry>>(
            "/audit",
            "audit",
            "List who changed what, when and from where, newest first. Needs the role write. The header \
             Slackline-Damaged-Lines is the number of lines of the log that cannot be read",
        )
    },
    Operation {
        answer: Answer::Events,
        ..get::<()>(
            "/events",
            "events",
            "Receive server-sent events. An event `changed` comes at the start and after every change: JSON with `revision`, \
             `progress` and `trouble`. When the token or session ends, the last event is `ended`",
        )
    },
    get::<Map<String, Value>>(
        "/openapi.json",
        "openapi",
        "Get this description in OpenAPI",
    ),
];
