//! What `mode = "continuous"` keeps: its state, its rounds, and what happened.

use tuner::continuous::{ContinuousState, HistoryEntry, Round};
use tuner::spec::{ContinuousSpec, Spec};

use super::database::{Cell, Database};
use super::entries;
use super::experiments::put_promotion;
use super::promotion::Promotion;
use super::row::{ExperimentRow, State as ExperimentState, find, set, state};
use super::{Store, json, name_of, to_json};
use crate::error::Error;

/// How a continuous experiment stands, as it was kept last.
#[derive(Clone, Debug)]
pub struct ContinuousStanding {
    /// The experiment's number.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// What its specification says of it.
    pub rules: ContinuousSpec,
    /// What its experiment is doing: nothing is watched unless it runs.
    pub experiment: ExperimentState,
    /// The state.
    pub state: ContinuousState,
}

impl ContinuousStanding {
    /// What it is at, in one word.
    #[must_use]
    pub fn doing(&self) -> String {
        match self.experiment {
            ExperimentState::Running => self.state.doing().to_string(),
            resting => resting.to_string(),
        }
    }
}

/// An experiment and what happened in it, all read at one moment.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The experiment.
    pub row: ExperimentRow,
    /// The state of its continuous mode, once it has one.
    pub state: Option<ContinuousState>,
    /// Every round, in order.
    pub rounds: Vec<Round>,
    /// What happened last, newest first.
    pub entries: Vec<HistoryEntry>,
}

impl Store {
    /// The state of a continuous experiment, once it has one.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn continuous(&self, id: i64) -> Result<Option<ContinuousState>, Error> {
        self.read(|database| {
            find(database, id)?;
            read_state(database, id)
        })
    }

    /// An experiment with its rounds and its last entries, at most `entries` of them. What one step
    /// of a continuous experiment changes is seen whole or not at all.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn moment(&self, id: i64, entries: usize) -> Result<Moment, Error> {
        self.read(|database| {
            Ok(Moment {
                row: find(database, id)?,
                state: read_state(database, id)?,
                rounds: read_rounds(database, id)?,
                entries: read_entries(database, id, entries)?,
            })
        })
    }

    /// Every continuous experiment that has begun.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn all_continuous(&self) -> Result<Vec<ContinuousStanding>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT id, name, spec, continuous, state FROM experiments WHERE continuous IS NOT NULL ORDER BY id DESC",
                &[],
            )
        })?;
        let standing = |row: &Vec<Cell>| {
            let spec: Spec = json(&row[2])?;
            Ok(ContinuousStanding {
                id: row[0].int().unwrap_or(0),
                name: name_of(&row[1]),
                rules: spec.continuous.unwrap_or_default(),
                experiment: state(&row[4])?,
                state: json(&row[3])?,
            })
        };
        rows.iter().map(standing).collect()
    }

    /// Every round, in order.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn rounds(&self, id: i64) -> Result<Vec<Round>, Error> {
        self.read(|database| read_rounds(database, id))
    }

    /// What happened last, newest first.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn entries(&self, id: i64, take: usize) -> Result<Vec<HistoryEntry>, Error> {
        self.read(|database| read_entries(database, id, take))
    }

    /// One step of a continuous experiment, whole or not at all. `promotion` is what of it is in
    /// force, where that changes.
    pub(crate) fn keep_continuous(
        &self,
        id: i64,
        state: &ContinuousState,
        round: Option<&Round>,
        happened: &[HistoryEntry],
        promotion: Option<Option<&Promotion>>,
    ) -> Result<(), Error> {
        let state = to_json(state)?;
        self.change(|database| {
            set(database, id, "continuous", state.into())?;
            if let Some(round) = round {
                database.execute(
                    "INSERT INTO rounds (experiment, number, round) VALUES ($1, $2, $3)",
                    &[id.into(), round.number.into(), to_json(round)?.into()],
                )?;
            }
            for entry in happened {
                entries::insert(database, id, entry)?;
            }
            if let Some(promotion) = promotion {
                put_promotion(database, id, promotion)?;
            }
            Ok(())
        })
    }
}

fn read_state(database: &mut Database, id: i64) -> Result<Option<ContinuousState>, Error> {
    let rows = database.query(
        "SELECT continuous FROM experiments WHERE id = $1",
        &[id.into()],
    )?;
    rows.first().map_or(Ok(None), |row| json(&row[0]))
}

fn read_rounds(database: &mut Database, id: i64) -> Result<Vec<Round>, Error> {
    let rows = database.query(
        "SELECT round FROM rounds WHERE experiment = $1 ORDER BY number",
        &[id.into()],
    )?;
    rows.iter().map(|row| json(&row[0])).collect()
}

fn read_entries(database: &mut Database, id: i64, take: usize) -> Result<Vec<HistoryEntry>, Error> {
    let rows = database.query(
        "SELECT entry FROM entries WHERE experiment = $1 ORDER BY number DESC LIMIT $2",
        &[id.into(), take.into()],
    )?;
    let entries = rows.iter().map(|row| json::<HistoryEntry>(&row[0]));
    entries
        .map(|entry| entry.map(HistoryEntry::in_sentences))
        .collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tuner::continuous::{Acting, Promoted, Searching, Seen, VerifiedCandidate};
    use tuner::ledger::Drift;
    use tuner::live::Changes;

    use super::super::tests::{at, new_experiment, on_both};
    use super::*;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_millisecond(1_790_000_000_000 + 1000 * second).unwrap()
    }

    /// Every part of it is there.
    fn full_state() -> ContinuousState {
        let candidate = VerifiedCandidate {
            configuration: at(4),
            gain: -0.1,
        };
        ContinuousState {
            promoted: Some(Promoted {
                configuration: at(3),
                gain: f64::from_bits(0xbfb9_9999_9999_999b),
                since: time(0),
                host: Some(tuner::continuous::HostThen {
                    boot_id: "b".into(),
                    knobs: [("vm.swappiness".to_owned(), "1".to_owned())].into(),
                    files: [("/etc/a.conf".to_owned(), "00ff".to_owned())].into(),
                }),
            }),
            search_reason: Some("the gain has changed by \u{2212}3 %".into()),
            searching: Some(Searching {
                since: time(1),
                from: 10,
                is_begun: true,
            }),
            candidate: Some(candidate.clone()),
            pending_change: Some(Acting::Promote(candidate)),
            since: [("gain".to_owned(), 7)].into(),
            drifts: vec![Drift {
                before: 10,
                variance: 0.0025,
            }],
            changes: vec![time(-5), time(0)],
            last_alarm: Some(time(2)),
            ..ContinuousState::new(time(-9))
        }
    }

    fn round(number: usize) -> Round {
        Round {
            number,
            at: time(3),
            of_promoted: true,
            season: 1,
            gain_season: 2,
            counts: true,
            seen: Seen::Measured(tuner::continuous::RoundResult {
                gain: -0.05,
                gain_variance: 1e-5,
                workload: [("requests_per_s".to_owned(), 1e5)].into(),
                excess: 0.0,
                broken: vec!["a <= 1".into()],
                broken_by_both: Vec::new(),
            }),
        }
    }

    fn entry(text: &str) -> HistoryEntry {
        HistoryEntry {
            at: time(4),
            kind: "drift".into(),
            text: text.into(),
        }
    }

    #[test]
    fn a_step_is_kept_and_read_whole() {
        on_both(|location| {
            let store = Store::open(location).unwrap();
            let mut new = new_experiment();
            new.spec.mode = tuner::spec::ExperimentMode::Continuous;
            let id = store.create(&new).unwrap();
            assert_eq!(store.continuous(id).unwrap(), None);
            assert!(store.all_continuous().unwrap().is_empty());
            let promotion = Promotion {
                is_complete: false,
                done: Changes {
                    changed: vec!["x = 4".into()],
                    ..Changes::default()
                },
                left: Vec::new(),
                at: time(5),
            };
            let state = full_state();
            let entries = [entry("First."), entry("Second.")];
            store
                .keep_continuous(
                    id,
                    &state,
                    Some(&round(1)),
                    &entries,
                    Some(Some(&promotion)),
                )
                .unwrap();
            store
                .keep_continuous(id, &state, Some(&round(2)), &[entry("Third.")], None)
                .unwrap();
            drop(store);
            let store = Store::open(location).unwrap();
            assert_eq!(store.continuous(id).unwrap(), Some(state.clone()));
            assert_eq!(store.rounds(id).unwrap(), [round(1), round(2)]);
            assert_eq!(
                store.entries(id, 2).unwrap(),
                [entry("Third."), entry("Second.")]
            );
            assert_eq!(store.experiment(id).unwrap().promotion, Some(promotion));
            let all = store.all_continuous().unwrap();
            assert_eq!((all.len(), all[0].id, &all[0].state), (1, id, &state));
            store
                .keep_continuous(id, &state, None, &[], Some(None))
                .unwrap();
            assert_eq!(store.experiment(id).unwrap().promotion, None);
            store.delete(id).unwrap();
            assert!(
                store.rounds(id).unwrap().is_empty(),
                "with their experiment"
            );
        });
    }

    /// State, promotion, rounds and entries are of the same step, whenever they are read.
    #[test]
    fn a_step_is_seen_whole_while_the_next_one_is_written() {
        on_both(|location| {
            let store = Store::open(location).unwrap();
            let id = store.create(&new_experiment()).unwrap();
            let other = Store::open(location).unwrap();
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    for number in 1..=40 {
                        let mut state = ContinuousState::new(time(0));
                        state.rounds = number;
                        let promotion = Promotion {
                            is_complete: true,
                            done: Changes {
                                changed: vec![number.to_string()],
                                ..Changes::default()
                            },
                            left: Vec::new(),
                            at: time(5),
                        };
                        let happened = [entry(&format!("{number}."))];
                        let round = round(number);
                        store
                            .keep_continuous(
                                id,
                                &state,
                                Some(&round),
                                &happened,
                                Some(Some(&promotion)),
                            )
                            .unwrap();
                    }
                });
                // By the connection that writes, and by another server's.
                for reader in [&store, &other].into_iter().cycle() {
                    let moment = reader.moment(id, 1).unwrap();
                    let rounds = moment.state.map_or(0, |state| state.rounds);
                    let said = moment.entries.first();
                    let said = said.map(|entry| entry.text.trim_end_matches('.').to_owned());
                    let changed = moment.row.promotion.map(|it| it.done.changed.join(""));
                    let expected = (rounds > 0).then(|| rounds.to_string());
                    assert_eq!((moment.rounds.len(), &said), (rounds, &expected));
                    assert_eq!(changed, expected);
                    if rounds == 40 || writer.is_finished() {
                        break;
                    }
                }
            });
        });
    }

    #[test]
    fn a_round_is_kept_once_and_a_refused_step_not_at_all() {
        on_both(|location| {
            let store = Store::open(location).unwrap();
            let id = store.create(&new_experiment()).unwrap();
            let first = ContinuousState::new(time(0));
            store
                .keep_continuous(id, &first, Some(&round(1)), &[], None)
                .unwrap();
            let again =
                store.keep_continuous(id, &full_state(), Some(&round(1)), &[entry("twice")], None);
            assert!(again.is_err());
            assert_eq!(store.continuous(id).unwrap(), Some(first));
            assert_eq!(store.rounds(id).unwrap().len(), 1);
            assert!(store.entries(id, 9).unwrap().is_empty());
        });
    }

    #[test]
    fn a_state_of_before_the_last_alarm_was_kept_is_read() {
        let mut value = serde_json::to_value(full_state()).unwrap();
        value.as_object_mut().unwrap().remove("last_alarm");
        let state: ContinuousState = serde_json::from_value(value).unwrap();
        assert_eq!(state.last_alarm, None);
    }
}
