//! A histogram on a service's own page of metrics: what its cumulative buckets gained between two
//! looks.

use std::time::{Duration, Instant};

use http_client::{Client, Url};

use crate::Error;
use crate::distribution::{Buckets, Distribution};
use crate::exposition::samples;
use crate::pace::{LOOK_EVERY, Pace};
use crate::reading::{NoData, Slice};
use crate::source::{LatencySource, ScrapeSpec, Wrong};

/// A page that takes longer is given up.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The longest page that is read.
const PAGE_BYTES_MAX: u64 = 16 << 20;

/// By convention of Prometheus' client libraries. A restart shows here even where the counters have
/// already passed their former values.
const PROCESS_START: &str = "process_start_time_seconds";

/// A page that is read for each poll.
#[derive(Debug)]
pub(crate) struct Scrape {
    spec: ScrapeSpec,
    url: Url,
    client: Client,
    pace: Pace,
    before: Option<Look>,
}

/// What a page says.
#[derive(Debug)]
struct Look {
    buckets: Buckets,
    /// When the process began, in seconds since 1970, where the page says so.
    process_start_s: Option<f64>,
}

impl Look {
    /// What came since an earlier look; `None` where the service began anew.
    fn since(&self, earlier: &Self) -> Option<Buckets> {
        let is_same = self.process_start_s == earlier.process_start_s;
        self.buckets.since(&earlier.buckets).filter(|_| is_same)
    }
}

impl Scrape {
    pub(crate) fn new(spec: &ScrapeSpec) -> Result<Self, Error> {
        spec.check()?;
        let url = Url::parse(&spec.url).map_err(|why| Wrong::new("scrape.url", why))?;
        Ok(Self {
            spec: spec.clone(),
            url,
            client: Client::new(TIMEOUT),
            pace: Pace::new(LOOK_EVERY),
            before: None,
        })
    }

    /// The page now.
    fn look(&self) -> Result<Look, String> {
        let page = self.client.text(&self.url, PAGE_BYTES_MAX);
        let page = page.map_err(|error| error.to_string())?;
        let buckets = buckets(&page, &self.spec).map_err(|why| format!("{}: {why}", self.url))?;
        let mut starts = samples(&page).filter(|sample| sample.name == PROCESS_START);
        Ok(Look {
            buckets,
            process_start_s: starts.next().map(|sample| sample.value),
        })
    }
}

/// The buckets of all series that match, added up.
fn buckets(page: &str, spec: &ScrapeSpec) -> Result<Buckets, String> {
    let name = format!("{}_bucket", spec.histogram);
    let mut cumulative: Vec<(f64, f64)> = Vec::new();
    let mut names = Vec::new();
    for sample in samples(page) {
        if sample.name != name {
            names.extend(sample.name.strip_suffix("_bucket").map(str::to_owned));
            continue;
        }
        let has = |(name, value): (&String, &String)| sample.label(name) == Some(value.as_str());
        if !spec.labels.iter().all(has) {
            continue;
        }
        let bound = sample.label("le").and_then(bound_of).ok_or(NO_BOUND)?;
        let bound_us = bound * spec.unit.us();
        match cumulative.iter_mut().find(|known| known.0 == bound_us) {
            Some(known) => known.1 += sample.value,
            None => cumulative.push((bound_us, sample.value)),
        }
    }
    if cumulative.is_empty() {
        names.dedup();
        let there = match names.is_empty() {
            true => "there is none at all".to_owned(),
            false => format!("there are {}", names.join(", ")),
        };
        return Err(format!(
            "no series of a histogram {} matches; {there}",
            spec.histogram
        ));
    }
    Buckets::from_cumulative(cumulative)
}

/// What is said where [`bound_of`] has no bound.
pub(crate) const NO_BOUND: &str = "the le of each bucket must be a number from 0 on, or +Inf";

/// The bound in a label `le`. No latency is below 0.
pub(crate) fn bound_of(text: &str) -> Option<f64> {
    let bound = match text {
        "+Inf" => f64::INFINITY,
        text => text.parse().ok()?,
    };
    (bound >= 0.0).then_some(bound)
}

impl LatencySource for Scrape {
    fn describe(&self) -> String {
        format!("the histogram {} of {}", self.spec.histogram, self.url)
    }

    fn poll(&mut self, until: Instant) -> Result<Slice, NoData> {
        self.pace.wait(until);
        let now = self.look().map_err(|why| NoData::Failed { why })?;
        let gained = self.before.as_ref().map(|before| now.since(before));
        self.before = Some(now);
        match gained {
            None => Err(NoData::Starting),
            Some(None) => Err(NoData::Reset),
            Some(Some(gained)) => Ok(Slice {
                distribution: Distribution::Buckets(gained),
                sampled_share: 1.0,
                ..Slice::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Unit;
    use crate::tests::serving;

    const PAGE: &str = "# TYPE http_seconds histogram
http_seconds_bucket{path=\"/a\",le=\"0.001\"} 10
http_seconds_bucket{path=\"/a\",le=\"0.01\"} 30 1700000000000
http_seconds_bucket{path=\"/a\",le=\"+Inf\"} 40
http_seconds_bucket{path=\"/b\",le=\"0.001\"} 1
http_seconds_bucket{path=\"/b\",le=\"0.01\"} 1
http_seconds_bucket{path=\"/b\",le=\"+Inf\"} 1
http_seconds_sum 3
";

    fn spec(url: &str) -> ScrapeSpec {
        ScrapeSpec {
            url: url.to_owned(),
            histogram: "http_seconds".into(),
            labels: [("path".to_owned(), "/a".to_owned())].into(),
            unit: Unit::Seconds,
        }
    }

    #[test]
    fn series_that_match_are_added_up() {
        let mut spec = spec("http://x/");
        assert_eq!(buckets(PAGE, &spec).unwrap().requests(), 40);
        spec.labels.clear();
        let all = buckets(PAGE, &spec).unwrap();
        assert_eq!(all.requests(), 41);
        let within_first = all.quantile_us(0.1).unwrap();
        assert!(
            (within_first - 1000.0 * 4.1 / 11.0).abs() < 1e-6,
            "{within_first}"
        );
        for bound in ["-Inf", "-0.001", "NaN", "x", ""] {
            let page = PAGE.replacen("le=\"0.001\"", &format!("le=\"{bound}\""), 1);
            let error = buckets(&page, &spec).unwrap_err();
            assert_eq!(error, NO_BOUND, "{bound}");
        }
        for count in ["5e300", "NaN"] {
            let page = PAGE.replacen("} 40", &format!("}} {count}"), 1);
            let error = buckets(&page, &spec).unwrap_err();
            assert!(error.ends_with("is not a count of requests"), "{error}");
        }
        spec.histogram = "other".into();
        let error = buckets(PAGE, &spec).unwrap_err();
        assert!(error.contains("there are http_seconds"), "{error}");
        assert!(buckets("", &spec).unwrap_err().contains("none at all"));
    }

    #[test]
    fn a_look_is_what_came_since_the_last_and_a_restart_is_a_reset() {
        let more = PAGE.replace("} 40", "} 60").replace("} 30 ", "} 50 ");
        let (url, _) = serving(vec![
            PAGE.to_owned(),
            more,
            PAGE.to_owned(),
            PAGE.to_owned(),
        ]);
        let mut scrape = Scrape::new(&spec(&url)).unwrap();
        scrape.pace = Pace::new(Duration::ZERO);
        let mut poll = || scrape.poll(Instant::now());
        assert_eq!(poll().unwrap_err(), NoData::Starting);
        let slice = poll().unwrap();
        assert_eq!(slice.distribution.requests(), 20);
        assert_eq!(slice.distribution.quantile_us(0.5), Some(5500.0));
        assert_eq!(poll().unwrap_err(), NoData::Reset);
        assert_eq!(poll().unwrap().distribution.requests(), 0);
    }

    #[test]
    fn a_restart_shows_by_the_start_of_the_process_though_the_counters_grew() {
        let started = |at: u32, page: &str| format!("{PROCESS_START} {at}\n{page}");
        let more = PAGE.replace("} 40", "} 60");
        let pages = [started(7, PAGE), started(7, &more), started(8, &more)];
        let (url, _) = serving(pages.into());
        let mut scrape = Scrape::new(&spec(&url)).unwrap();
        scrape.pace = Pace::new(Duration::ZERO);
        assert!(scrape.poll(Instant::now()).is_err());
        let slice = scrape.poll(Instant::now()).unwrap();
        assert_eq!(slice.distribution.requests(), 20);
        assert_eq!(scrape.poll(Instant::now()).unwrap_err(), NoData::Reset);
    }

    #[test]
    fn a_page_that_cannot_be_read_hides_its_login() {
        let mut scrape = Scrape::new(&spec("http://me:secret@127.0.0.1:9/metrics")).unwrap();
        let why = scrape.poll(Instant::now()).unwrap_err().to_string();
        assert!(
            !why.contains("secret") && why.contains("127.0.0.1:9"),
            "{why}"
        );
        assert!(!scrape.describe().contains("secret"));
        assert!(Scrape::new(&spec("127.0.0.1")).is_err());
    }
}
