package slackline.tweets

/** A JSON document, and its text. */
sealed trait Json {
  final def render: String = {
    val out = new StringBuilder(512)
    Json.write(this, out)
    out.result()
  }
}

object Json {
  final case class Number(value: Long) extends Json
  final case class Text(value: String) extends Json
  final case class Items(values: Vector[Json]) extends Json
  final case class Fields(values: Vector[(String, Json)]) extends Json

  def obj(fields: (String, Json)*): Json = Fields(fields.toVector)

  /** How a value of type `A` is told in JSON. */
  trait Encoder[-A] {
    def apply(value: A): Json
  }

  object Encoder {
    def apply[A](implicit encoder: Encoder[A]): Encoder[A] = encoder

    implicit val json: Encoder[Json] = value => value
    implicit val long: Encoder[Long] = Number(_)
    implicit val int: Encoder[Int] = value => Number(value.toLong)
    implicit val string: Encoder[String] = Text(_)
    implicit val user: Encoder[UserId] = id => Number(id.value.toLong)
    implicit def sequence[A: Encoder]: Encoder[Iterable[A]] =
      values => Items(values.iterator.map(Encoder[A].apply).toVector)

    implicit val tweet: Encoder[Tweet] = tweet =>
      obj(
        "id" -> tweet.id.value.toJson,
        "user" -> tweet.author.toJson,
        "at" -> tweet.at.toString.toJson,
        "text" -> tweet.text.toJson,
        "hashtags" -> tweet.entities.hashtags.toJson,
        "mentions" -> tweet.entities.mentions.toJson
      )

    implicit val timeline: Encoder[Timeline] = timeline =>
      obj(
        "user" -> timeline.reader.toJson,
        "topics" -> timeline.topics.map { case (topic, count) =>
          obj("topic" -> topic.toJson, "count" -> count.toJson)
        }.toJson,
        "tweets" -> timeline.tweets.toJson
      )
  }

  implicit final class Encoded[A](private val value: A) extends AnyVal {
    def toJson(implicit encoder: Encoder[A]): Json = encoder(value)
  }

  private def write(json: Json, out: StringBuilder): Unit = json match {
    case Number(value) => out.append(value)
    case Text(value)   => quote(value, out)
    case Items(values) => enclosed('[', values, ']', out)(write(_, out))
    case Fields(values) =>
      enclosed('{', values, '}', out) { case (name, value) =>
        quote(name, out)
        out.append(':')
        write(value, out)
      }
  }

  private def enclosed[A](open: Char, values: Vector[A], close: Char, out: StringBuilder)(each: A => Unit): Unit = {
    out.append(open)
    values.iterator.zipWithIndex.foreach { case (value, index) =>
      if (index > 0) out.append(',')
      each(value)
    }
    out.append(close)
  }

  /** RFC 8259, section 7: the quote, the backslash and the control characters must be escaped. */
  private def quote(text: String, out: StringBuilder): Unit = {
    out.append('"')
    text.foreach {
      case '"'                => out.append("\\\"")
      case '\\'               => out.append("\\\\")
      case '\n'               => out.append("\\n")
      case char if char < ' ' => out.append("\\u%04x".format(char.toInt))
      case char               => out.append(char)
    }
    out.append('"')
  }
}
