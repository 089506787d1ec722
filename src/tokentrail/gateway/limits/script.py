"""The script that counts in Redis: `memory.MemoryStore`, line for line, in Redis's Lua.

All keys of a group have its hash tag, so that in a cluster they lie on one node, where a script may touch them:

- `…:NAME`: of a window, a hash of seconds → amounts; of a count or a period, a number;
- `…:reservations`: a hash of request ids → reservations (MessagePack);
- `…:leases`: a sorted set of request ids by the second in which their lease runs out.

Arguments: what to do (reserve, read, begin, settle, lapse, renew), the second (empty: Redis's own clock, the only one
that all gateways share), then in MessagePack [id, lease, meters, amounts, surely], the meters, [[name, used, ends] …],
[[id, amounts] …] to settle and to lapse, or [lease, [[id, amounts] …]]. A reservation answers 1 or 0 (granted), then
for each meter used, reset_ms, wait_ms, refused (see `store.Reading`); or 2: unknown.
"""

from __future__ import annotations

from tokentrail.gateway.limits.store import KEPT_SECONDS, WINDOW_SECONDS, Kind

SCRIPT = (
    f"""
local WINDOW, COUNT = {Kind.WINDOW:d}, {Kind.COUNT:d}
local SECONDS, KEPT = {WINDOW_SECONDS}, {KEPT_SECONDS:.0f}
"""
    + """
local prefix, op, now = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local second = math.floor(now)
local reservations, leases = prefix .. ':reservations', prefix .. ':leases'

local function whole(number)
  return string.format('%.0f', number)
end

local function ms(seconds)
  return math.ceil(seconds * 1000)
end

local function load(id)
  local text = redis.call('HGET', reservations, id)
  -- {charges = {{name, kind, unit, amount, at, until}}, seen = amounts, live = whether its lease has not run out}
  return text and cmsgpack.unpack(text)
end

local function save(id, reservation, expires)
  redis.call('HSET', reservations, id, cmsgpack.pack(reservation))
  redis.call('ZADD', leases, string.format('%.17g', expires), id)
  local most = math.ceil((expires - now + 2 * KEPT) * 1000)
  redis.call('PEXPIRE', reservations, most)
  redis.call('PEXPIRE', leases, most)
end

local function forget(id)
  redis.call('HDEL', reservations, id)
  redis.call('ZREM', leases, id)
end

-- Sum, newest second (nil: nothing is counted) and seconds → amounts.
local function window(key)
  local fields, used, newest, slices = redis.call('HGETALL', key), 0, nil, {}
  for i = 1, #fields, 2 do
    local slice, amount = tonumber(fields[i]), tonumber(fields[i + 1])
    if second - slice > SECONDS then
      redis.call('HDEL', key, fields[i])
    else
      used = used + amount
      slices[slice] = amount
      if not newest or slice > newest then newest = slice end
    end
  end
  return used, newest, slices
end

local function room_at(used, newest, slices, limit, amount)
  local seconds, at = {}, newest or 0
  for slice in pairs(slices) do seconds[#seconds + 1] = slice end
  table.sort(seconds)
  for _, slice in ipairs(seconds) do
    at = slice
    used = used - slices[slice]
    if used + amount <= limit then break end
  end
  return at + SECONDS + 1
end

local function add(key, slice, amount)
  redis.call('HINCRBY', key, whole(slice), whole(amount))
  redis.call('PEXPIRE', key, (SECONDS + 2) * 1000)
end

local function count(name, change, life)
  local key = prefix .. ':' .. name
  if redis.call('INCRBY', key, whole(change)) <= 0 then
    redis.call('DEL', key)
  elseif life then
    redis.call('PEXPIRE', key, life)
  end
end

local function release(reservation, change)
  for _, charge in ipairs(reservation.charges) do
    if charge[2] == COUNT then count(charge[1], change) end
  end
end

local function correct(reservation, amounts)
  for _, charge in ipairs(reservation.charges) do
    local key, kind = prefix .. ':' .. charge[1], charge[2]
    if kind ~= COUNT then
      local amount = amounts[charge[3] + 1]
      local change = amount - charge[4]
      charge[4] = amount
      if kind == WINDOW then
        if change > 0 then
          add(key, second, change)
        elseif change < 0 and second - charge[5] <= SECONDS then
          add(key, charge[5], change)
        end
      elseif change ~= 0 and now < charge[6] then
        redis.call('INCRBY', key, whole(change))
        redis.call('PEXPIRE', key, ms(charge[6] - now + KEPT))
      end
    end
  end
end

local function lapse(id, reservation, amounts)
  if reservation.live then
    reservation.live = false
    release(reservation, -1)
  end
  correct(reservation, amounts)
  reservation.seen = amounts
  save(id, reservation, now + KEPT)
end

local function reap()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', string.format('%.17g', now), 'LIMIT', 0, 100)) do
    local reservation = load(id)
    if reservation and reservation.live then
      lapse(id, reservation, reservation.seen)
    else
      forget(id)
    end
  end
end

-- Used, until it resets, of a window its newest second and its slices, and whether anything was ever counted.
local function reading(meter)
  local name, kind, _, _, ends = unpack(meter)
  local key = prefix .. ':' .. name
  if kind == WINDOW then
    local used, newest, slices = window(key)
    return used, newest and ms(newest + SECONDS + 1 - now) or 0, newest, slices, true
  end
  local counted = redis.call('GET', key)
  return tonumber(counted or 0), kind == COUNT and 0 or ms(ends - now), nil, nil, counted
end

if op == 'reserve' then
  local id, lease, meters, amounts, surely = unpack(cmsgpack.unpack(ARGV[3]))
  reap()
  local known = redis.call('HEXISTS', reservations, id) == 1
  local granted, reply = true, {1}
  for i, meter in ipairs(meters) do
    local name, kind, unit, limit, ends = unpack(meter)
    local amount, wait, refused = amounts[unit + 1], -1, 0
    local used, reset, newest, slices, counted = reading(meter)
    if not counted and surely and kind ~= COUNT and not known then return {2} end
    if not known and used + amount > limit then
      granted, refused = false, 1
      if kind == WINDOW then
        wait = ms(room_at(used, newest, slices, limit, amount) - now)
      elseif kind ~= COUNT then
        wait = ms(ends - now)
      end
    elseif kind == WINDOW and not known then
      newest = math.max(newest or second, second)
    end
    reply[#reply + 1] = {used, reset, wait, refused, newest or 0}
  end
  if granted and not known then
    local charges = {}
    for i, meter in ipairs(meters) do
      local name, kind, unit, limit, ends = unpack(meter)
      local amount, key, reading = amounts[unit + 1], prefix .. ':' .. name, reply[i + 1]
      if kind == WINDOW then
        add(key, second, amount)
        reading[2] = ms(reading[5] + SECONDS + 1 - now)
      elseif kind == COUNT then
        count(name, amount, ms(lease + 2 * KEPT))
      else
        redis.call('INCRBY', key, whole(amount))
        redis.call('PEXPIRE', key, ms(ends - now + KEPT))
      end
      reading[1] = reading[1] + amount
      charges[i] = {name, kind, unit, amount, second, ends}
    end
    save(id, {charges = charges, seen = {1, 0, 0}, live = true}, now + lease)
  end
  if not granted then reply[1] = 0 end
  return reply
elseif op == 'read' then
  reap()
  local reply = {}
  for i, meter in ipairs(cmsgpack.unpack(ARGV[3])) do
    local used, reset = reading(meter)
    reply[i] = {used, reset}
  end
  return reply
elseif op == 'begin' then
  for _, item in ipairs(cmsgpack.unpack(ARGV[3])) do
    local name, used, ends = unpack(item)
    redis.call('SET', prefix .. ':' .. name, whole(used), 'NX', 'PX', ms(ends - now + KEPT))
  end
elseif op == 'lapse' then
  for _, item in ipairs(cmsgpack.unpack(ARGV[3])) do
    local id, amounts = unpack(item)
    local reservation = load(id)
    if reservation then lapse(id, reservation, amounts) end
  end
elseif op == 'settle' then
  for _, item in ipairs(cmsgpack.unpack(ARGV[3])) do
    local id, amounts = unpack(item)
    local reservation = load(id)
    if reservation then
      forget(id)
      if reservation.live then release(reservation, -1) end
      correct(reservation, amounts)
    end
  end
else
  local lease, items = unpack(cmsgpack.unpack(ARGV[3]))
  for _, item in ipairs(items) do
    local id, amounts = unpack(item)
    local reservation = load(id)
    if reservation then
      if not reservation.live then
        reservation.live = true
        release(reservation, 1)
        correct(reservation, amounts)
      end
      reservation.seen = amounts
      save(id, reservation, now + lease)
    end
  end
end
return 0
"""
)
