//! Promotions whose experiment the store does not have: its database was removed, or replaced by
//! another one, while something was in force on the host. The list of promotions in the state
//! directory still says what that is, and how to undo it.

use tuner::promotions::PromotionRecord;

use crate::coordinator::Coordinator;
use crate::error::Error;

impl Coordinator {
    /// What experiments have in force on this host that the store does not know as promoted.
    ///
    /// # Errors
    /// The list of promotions, or the store, cannot be read.
    pub fn unknown_promotions(&self) -> Result<Vec<PromotionRecord>, Error> {
        let mut unknown = Vec::new();
        for record in tuner::promotions::in_force_by_experiments(&self.state_dir, &self.roots)? {
            let Some(by) = &record.served else { continue };
            let is_known = match self.store.experiment(by.experiment) {
                Ok(row) => row.served() == *by && self.is_to_be_rolled_back(&row)?,
                Err(Error::NotFound(_)) => false,
                Err(error) => return Err(error),
            };
            if !is_known {
                unknown.push(record);
            }
        }
        Ok(unknown)
    }

    /// The first of them, and what to do about it.
    pub(crate) fn unknown_promotion(&self) -> Result<Option<String>, Error> {
        let unknown = self.unknown_promotions()?;
        Ok(unknown.first().map(|it| {
            let experiment = it.served.as_ref().map_or(0, |by| by.experiment);
            format!(
                "promotion {0} is in force on this host: {1}. Experiment {experiment} ({2}) promoted it, but the database {3} has no \
                 record of that promotion. The database was probably removed or replaced. Roll back with `slackline promotions undo {0}`, \
                 or stop the server and put the database back",
                it.number,
                it.changed().join("; "),
                it.experiment,
                self.store.location(),
            )
        }))
    }
}
