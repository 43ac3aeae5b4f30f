import sys

import pika

connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
channel.exchange_declare(exchange="logs", exchange_type="fanout")
queue = channel.queue_declare(queue="", exclusive=True).method.queue
channel.queue_bind(exchange="logs", queue=queue)
print(" [*] Waiting for logs", flush=True)


def callback(channel, method, properties, body):
    print(f" [x] {body}", flush=True)


channel.basic_consume(queue=queue, on_message_callback=callback, auto_ack=True)
channel.start_consuming()
