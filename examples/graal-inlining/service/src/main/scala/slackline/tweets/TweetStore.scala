package slackline.tweets

import java.util.concurrent.atomic.{AtomicLong, AtomicReference}

import scala.collection.concurrent.TrieMap

/** All tweets, in memory, readable and writable from any thread.
  *
  * The store keeps its size: each user's feed holds [[DataSet.TweetsPerUser]] tweets, and a new one pushes the oldest
  * out. Tweets of the data set stay readable by id for ever, so that a read of one never depends on how many writes
  * went before; a written tweet is forgotten when it leaves its author's feed. At most twice the data set is held.
  */
final class TweetStore(data: DataSet) {

  private val written = TrieMap.empty[TweetId, Tweet]
  private val feeds: Vector[AtomicReference[Vector[Tweet]]] =
    data.feeds.map(new AtomicReference(_))
  private val lastId = new AtomicLong(data.tweets.size.toLong)

  def users: Int = feeds.size

  def find(id: TweetId): Option[Tweet] =
    // Ids of the data set count from 1.
    if (id.value >= 1 && id.value <= data.tweets.size) Some(data.tweets((id.value - 1).toInt))
    else written.get(id)

  /** Adds a tweet; `None` if there is no such user. */
  def add(author: UserId, text: String): Option[Tweet] =
    feeds.lift(author.value).map { feed =>
      val id = TweetId(lastId.incrementAndGet())
      val tweet = Tweet(id, author, DataSet.instantOf(id), text, Entities.of(text))
      written += id -> tweet
      val before = feed.getAndUpdate(inserted(_, tweet).take(DataSet.TweetsPerUser))
      inserted(before, tweet).drop(DataSet.TweetsPerUser).foreach(dropped => written -= dropped.id)
      tweet
    }

  /** The newest `limit` tweets of the users whom `reader` follows; `None` if there is no such reader. */
  def timeline(reader: UserId, limit: Int): Option[Timeline] =
    data.follows.lift(reader.value).map { followed =>
      Timeline(reader, Timeline.merge(followed.iterator.map(user => feeds(user.value).get), limit))
    }

  /** Newest first stays newest first, even if a slower writer with an older id comes later. */
  private def inserted(feed: Vector[Tweet], tweet: Tweet): Vector[Tweet] = {
    val (newer, older) = feed.span(Tweet.byTime.gt(_, tweet))
    (newer :+ tweet) ++ older
  }
}
