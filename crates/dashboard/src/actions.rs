//! The words for the actions of the audit log. The log, the interface and the server's messages
//! have their names; pages say the same in these words.

/// The name of an action, the words for doing it, and those for having done it to an experiment.
const ACTIONS: &[(&str, &str, &str)] = &[
    ("create", "create an experiment", "created the experiment"),
    ("import", "import a report", "imported the experiment"),
    ("fork", "fork an experiment", "forked the experiment"),
    ("delete", "delete an experiment", "deleted the experiment"),
    ("pause", "pause an experiment", "paused the experiment"),
    ("resume", "resume an experiment", "resumed the experiment"),
    ("stop", "stop an experiment", "stopped the experiment"),
    ("verify", "start a verification", "asked for a verification"),
    ("promote", "promote a winner", "promoted the winner"),
    (
        "rollback",
        "roll a promotion back",
        "rolled the promotion back",
    ),
    (
        "forget-rest",
        "forget the rest of a rollback",
        "forgot the rest of the rollback",
    ),
    ("budget", "change a budget", "changed the budget"),
    (
        "enqueue",
        "enqueue a configuration",
        "enqueued a configuration",
    ),
    ("kill", "kill an evaluation", "killed an evaluation"),
    (
        "note",
        "change the note on an experiment",
        "changed the note on the experiment",
    ),
    (
        "note-evaluation",
        "change the note on an evaluation",
        "changed the note on an evaluation",
    ),
    ("pause-queue", "pause the queue", "paused the queue"),
    ("resume-queue", "resume the queue", "resumed the queue"),
    ("make-token", "make a token", "made a token"),
    ("revoke-token", "revoke a token", "revoked a token"),
    ("sign-in", "sign in", "signed in"),
    ("sign-out", "sign out", "signed out"),
    // What was refused before it was known what it would do.
    ("refused", "request", "sent a request"),
];

fn of(name: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    ACTIONS.iter().find(|(known, ..)| *known == name)
}

/// What somebody did or wanted to do: `pause the queue`.
pub(crate) fn verb(name: &str) -> &str {
    of(name).map_or(name, |(_, verb, _)| verb)
}

/// What somebody has done: `paused the queue`.
pub(crate) fn past(name: &str) -> &str {
    of(name).map_or(name, |(.., past)| past)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_has_words() {
        let changes = crate::openapi::changes().filter(|name| *name != "check");
        let own = [
            "make-token",
            "revoke-token",
            "sign-in",
            "sign-out",
            "refused",
        ];
        for name in changes.chain(own) {
            assert!(of(name).is_some(), "{name}");
        }
        assert_eq!(
            (verb("note-evaluation"), past("note-evaluation")),
            (
                "change the note on an evaluation",
                "changed the note on an evaluation"
            )
        );
    }
}
