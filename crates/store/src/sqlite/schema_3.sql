-- Links by which the first user is made end when there is a user.

ALTER TABLE invitations ADD COLUMN is_first INTEGER NOT NULL DEFAULT 0;

-- What nobody who may invite has made: older first links, and links of users who have been removed. Without a
-- user the next start makes another first link.
DELETE FROM invitations WHERE created_by NOT IN (SELECT name FROM users WHERE role = 'admin');
