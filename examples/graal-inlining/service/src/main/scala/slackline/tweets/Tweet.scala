package slackline.tweets

import java.time.Instant

/** A user's number, from 0 to the number of users less one. */
final case class UserId(value: Int) extends AnyVal

/** A tweet's number: ids grow with time, so they order tweets of the same instant. */
final case class TweetId(value: Long) extends AnyVal

/** What a text refers to. */
final case class Entities(hashtags: Vector[String], mentions: Vector[UserId])

object Entities {

  /** Finds `#topic` and `@17` in a text, each once, in the order of their first appearance. */
  def of(text: String): Entities = {
    val words = text.split(' ').toVector.filter(_.length > 1)
    def marked(sign: Char) = words.collect { case word if word.head == sign => word.tail }.distinct
    Entities(
      hashtags = marked('#').map(_.toLowerCase),
      mentions = marked('@').flatMap(_.toIntOption).map(UserId(_))
    )
  }
}

final case class Tweet(id: TweetId, author: UserId, at: Instant, text: String, entities: Entities)

object Tweet {

  /** The longest text accepted, in UTF-16 units: the public limit of the service that gave tweets their name. */
  val MaxLength = 280

  /** Oldest first. */
  val byTime: Ordering[Tweet] =
    Ordering.by[Tweet, Instant](_.at).orElseBy(_.id.value)
}
