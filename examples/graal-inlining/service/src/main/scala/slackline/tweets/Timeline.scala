package slackline.tweets

import scala.collection.{BufferedIterator, mutable}

/** What one reader sees: the newest tweets of those they follow, and what these are about. */
final case class Timeline(reader: UserId, tweets: Vector[Tweet]) {

  /** The most frequent hashtags of the page with their counts, at most [[Timeline.TopicCount]]; ties by name. */
  def topics: Vector[(String, Int)] =
    tweets
      .flatMap(_.entities.hashtags)
      .groupMapReduce(identity)(_ => 1)(_ + _)
      .toVector
      .sortBy { case (topic, count) => (-count, topic) }
      .take(Timeline.TopicCount)
}

object Timeline {

  /** Enough to show beside a page. */
  val TopicCount = 3

  /** The newest `limit` tweets of feeds that are each ordered newest first. */
  def merge(feeds: Iterator[Vector[Tweet]], limit: Int): Vector[Tweet] = {
    val heads = mutable.PriorityQueue.empty[BufferedIterator[Tweet]](
      Ordering.by((feed: BufferedIterator[Tweet]) => feed.head)(Tweet.byTime)
    )
    heads ++= feeds.filter(_.nonEmpty).map(_.iterator.buffered)
    Iterator
      .unfold(heads) { heads =>
        Option.when(heads.nonEmpty) {
          val feed = heads.dequeue()
          val tweet = feed.next()
          if (feed.hasNext) heads.enqueue(feed)
          (tweet, heads)
        }
      }
      .take(limit)
      .toVector
  }
}
