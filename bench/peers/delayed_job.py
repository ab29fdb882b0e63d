"""Delayed::Job on ActiveRecord, from Debian's Ruby."""

from __future__ import annotations

from .peer import Peer, Safety

PROGRAM = r"""
# Without Rails, whose start costs more. `work` and `empty` do what its `rake jobs:work` and `rake jobs:workoff` do.
require "active_record"
require "delayed_job_active_record"

Place = ENV.to_h.select { |name, _| name.start_with?("BENCH_") }.transform_keys { |name| name[6..].downcase.to_sym }
ActiveRecord::Base.establish_connection(
  adapter: "mysql2", encoding: "utf8mb4", username: Place[:user], **Place.slice(:host, :port, :password, :database)
)
Delayed::Worker.max_run_time = 60
CALLS = File.open(Place[:calls], "a")
CALLS.sync = true

Nothing = Struct.new(:n) do
  def perform
    CALLS.write(".")
  end
end

Effect = Struct.new(:n) do
  def perform
    sleep 0.0025
    ActiveRecord::Base.connection.execute("INSERT INTO effects (n) VALUES (#{Integer(n)})")
    sleep 0.0025
    CALLS.write(".")
  end
end

def install
  ActiveRecord::Schema.verbose = false
  ActiveRecord::Schema.define do
    create_table :delayed_jobs do |table|
      table.integer :priority, :attempts, default: 0, null: false
      table.text :handler, null: false
      table.text :last_error
      table.datetime :run_at, :locked_at, :failed_at
      table.string :locked_by, :queue
      table.timestamps null: true
    end
    add_index :delayed_jobs, [:priority, :run_at], name: "delayed_jobs_priority"
  end
end

def add(count)
  kind = Place[:task] == "effect" ? Effect : Nothing
  begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  count.times { |n| Delayed::Job.enqueue(kind.new(n)) }
  puts Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun
end

case ARGV[0]
when "install" then install
when "add" then add(Integer(ARGV[1]))
else Delayed::Worker.new(quiet: true, exit_on_complete: ARGV[0] == "empty").start
end
"""

PEERS = [
    Peer(
        name="Delayed::Job",
        base="mysql",
        debian="ruby-delayed-job-active-record ruby-mysql2",
        files={"program.rb": PROGRAM},
        commands={
            "install": "ruby program.rb install",
            "add": "ruby program.rb add {count}",
            "add_many": "ruby program.rb add {count}",
            "work": "ruby program.rb work",
            "empty": "ruby program.rb empty",
        },
        tables=("delayed_jobs",),
        copied={"handler": "handler", "run_at": "run_at", "created_at": "created_at", "updated_at": "updated_at"},
        unfinished="SELECT COUNT(*) FROM delayed_jobs WHERE failed_at IS NULL",
        safety=Safety(durable=True, survives=True, runs="at least once"),
        notes=(
            "without Rails, which a site loads at each start",
            "the task of a killed worker runs again after max_run_time = 60 s; by default that is 4 hours",
            "it adds only one by one",
        ),
        skips=("add_many",),
    )
]
