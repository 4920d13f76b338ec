//! The `apply` steps of a target: how a running service is made to use a configuration.

use http_client::Url;

use crate::error::Fault;
use crate::process::{Interrupt, Launch};
use crate::reapply::{COMMAND_TIMEOUT, Reapply, Step};
use crate::spec::{ApplySpec, CheckedSpec};
use crate::target::Instance;
use crate::template::{self, Variables};

impl Instance {
    /// Runs the `apply` steps: a refusal is the configuration's fault.
    pub(crate) fn apply(&self, spec: &CheckedSpec, interrupt: &Interrupt) -> Result<(), Fault> {
        self.apply_changes(spec, None, interrupt)
    }

    /// The same where `before` is in force: steps for parameters that do not change are left out.
    pub(crate) fn apply_changes(
        &self,
        spec: &CheckedSpec,
        before: Option<&Variables>,
        interrupt: &Interrupt,
    ) -> Result<(), Fault> {
        for step in &spec.target().apply {
            if is_due(&step.parameters, before, &self.variables) {
                self.apply_step(spec, step, interrupt)?;
            }
        }
        Ok(())
    }

    fn apply_step(
        &self,
        spec: &CheckedSpec,
        step: &ApplySpec,
        interrupt: &Interrupt,
    ) -> Result<(), Fault> {
        match self.filled(spec, step)? {
            Step::Command(argv) => Launch {
                argv,
                may_outlive_run: spec.target().start.is_none(),
                ..self.launch(spec, &[], "apply")?
            }
            .run(COMMAND_TIMEOUT, interrupt, || Ok(()))
            .map(drop)
            .map_err(|error| self.side.run_fault(error)),
            Step::Request { method, url, body } => {
                Step::request(&method, &url, &body).map_err(|message| self.side.fault(message))
            }
        }
    }

    /// An `apply` step with this side's values.
    fn filled(&self, spec: &CheckedSpec, step: &ApplySpec) -> Result<Step, Fault> {
        if let Some(command) = &step.command {
            return Ok(Step::Command(self.launch(spec, command, "apply")?.argv));
        }
        let fill = |text: Option<&String>| {
            template::fill(text.map_or("", String::as_str), &self.variables)
                .map_err(|error| Fault::Harness(error.to_string()))
        };
        Ok(Step::Request {
            method: step.method.clone().unwrap_or_else(|| "POST".into()),
            url: Url::parse(&fill(step.url.as_ref())?)
                .map_err(|why| Fault::Harness(format!("target.apply.url: {why}")))?,
            body: fill(step.body.as_ref())?,
        })
    }

    /// The `apply` steps with this side's values, to be repeated by whoever restores.
    pub(crate) fn reapply(&self, spec: &CheckedSpec) -> Result<Reapply, Fault> {
        let steps = spec
            .target()
            .apply
            .iter()
            .map(|step| self.filled(spec, step));
        let launch = self.launch(spec, &[], "apply")?;
        Ok(Reapply {
            dir: spec.dir.clone(),
            env: launch.env,
            env_files: launch.env_files,
            steps: steps.collect::<Result<_, _>>()?,
        })
    }
}

/// Whether an `apply` step for these parameters has anything to do: all have, where it is not known
/// what is in force.
fn is_due(parameters: &[String], before: Option<&Variables>, after: &Variables) -> bool {
    let Some(before) = before else {
        return true;
    };
    let mut names = parameters.iter();
    parameters.is_empty() || names.any(|name| before.get(name) != after.get(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_left_out_where_nothing_of_its_changes() {
        let of = |text: &str| -> Variables {
            let pairs = text
                .split_whitespace()
                .filter_map(|pair| pair.split_once('='));
            pairs
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect()
        };
        let (before, after) = (of("workers=4 timeout=10"), of("workers=4 timeout=20"));
        let restart = ["workers".to_owned()];
        let reload = ["timeout".to_owned(), "workers".to_owned()];
        assert!(!is_due(&restart, Some(&before), &after));
        assert!(is_due(&reload, Some(&before), &after));
        assert!(is_due(&[], Some(&before), &after));
        assert!(is_due(&restart, None, &after));
    }
}
